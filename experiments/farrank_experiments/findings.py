"""The results, and which of the paper's findings they confirm: each by a rule that the report states.

Some rules hold for any ranker that works at all: a ranker that reads only first chunks cannot find anything
in later ones. They check the apparatus, and are no findings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import numpy as np

from farrank_experiments.asking import Values
from farrank_experiments.contenders import ATTN, AVGP, FIRSTP, MAXP, RAND, UNPLACED
from farrank_experiments.contrasts import ALPHA, Contrast, adjusted, contrast
from farrank_experiments.questions import BIASED, FAR, HARDER, NATURAL, at_place

# Standard errors that a mean of random orders exceeds in 1 of 100 experiments.
_ERRORS = 2.58

# Measure -> the stage of training, and the condition of the candidates.
MEASURES: Mapping[str, tuple[str, str]] = {
    "Biased": (BIASED, BIASED),
    "Far, zero-shot": (BIASED, FAR),
    "Far, fine-tuned": (FAR, FAR),
    "harder Far, zero-shot": (BIASED, HARDER),
    "harder Far, fine-tuned": (FAR, HARDER),
    "articles": (BIASED, NATURAL),
    "articles, fine-tuned": (FAR, NATURAL),
}
_BIASED, _ZERO_SHOT, _TUNED, *_ = MEASURES

# All tests of the findings, corrected together: a ranker, another one, and their measure.
Test = tuple[str, str, str]
TESTS: tuple[Test, ...] = (
    (MAXP, FIRSTP, _ZERO_SHOT),
    (ATTN, FIRSTP, _ZERO_SHOT),
    (MAXP, RAND, _ZERO_SHOT),
    (ATTN, RAND, _ZERO_SHOT),
    (RAND, MAXP, _TUNED),
    (RAND, ATTN, _TUNED),
    (UNPLACED, RAND, _ZERO_SHOT),
    (UNPLACED, RAND, _BIASED),
    (MAXP, AVGP, _ZERO_SHOT),
)

# Contender -> the values of each seed, by measure or place, then by question.
Measured = Mapping[str, Sequence[Values]]


def measured(results: Mapping[str, Mapping[str, Sequence[Values]]]) -> dict[str, list[Values]]:
    """Arrange the contenders' values by measure instead of by stage and condition."""
    return {
        contender: [
            {measure: by_stage[stage][seed][condition] for measure, (stage, condition) in MEASURES.items()}
            for seed in range(len(by_stage[BIASED]))
        ]
        for contender, by_stage in results.items()
    }


def by_place(
    results: Mapping[str, Mapping[str, Sequence[Values]]], stage: str, places: int
) -> dict[str, list[list[float]]]:
    """Give the MRR of each contender and seed with the relevant passage at place 1, 2 and so on."""
    return {
        contender: [
            [fmean(values[at_place(place)].values()) for place in range(1, places + 1)]
            for values in by_stage[stage]
        ]
        for contender, by_stage in results.items()
    }


@dataclass(frozen=True, slots=True)
class Chance:
    """The MRR of candidates in random order, and the bound of its deviation by chance (99%)."""

    mrr: float
    bound: float

    @classmethod
    def of(cls, candidates: int, questions: int) -> "Chance":
        """Compute both values; the ranks 1 to `candidates` are equally likely."""
        ranks = range(1, candidates + 1)
        mrr = fmean(1 / rank for rank in ranks)
        variance = fmean(1 / rank**2 for rank in ranks) - mrr**2
        return cls(mrr, _ERRORS * sqrt(variance / questions))

    def covers(self, mrr: float) -> bool:
        """Whether an MRR cannot be distinguished from chance."""
        return abs(mrr - self.mrr) <= self.bound


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the paper, the rule that tests it, the outcome, and the figures behind it.

    `came_out` is None if rankers that the rule compares were not measured. A check is a rule that holds by
    construction.
    """

    sentence: str
    rule: str
    came_out: bool | None
    figures: str
    is_check: bool = False


class Judge:
    """Applies the rules to one track's figures. `places` is `by_place` of the rankers trained on Biased."""

    def __init__(
        self, found: Measured, places: Mapping[str, Sequence[Sequence[float]]], chance: Chance
    ) -> None:
        self.found, self.places, self.chance = found, places, chance
        self.contrasts: dict[Test, Contrast] = {
            (one, other, measure): contrast(*self._values(one, other, measure))
            for one, other, measure in TESTS
            if {one, other} <= found.keys()
        }
        self._p = adjusted({test: its.p for test, its in self.contrasts.items() if its.p is not None})

    def mean(self, contender: str, measure: str) -> float:
        """Average over questions and seeds."""
        return fmean(fmean(values[measure].values()) for values in self.found[contender])

    def lead(self, contender: str, measure: str) -> float:
        """Average its lead over FirstP on the questions that it was asked."""
        ours, firsts = self._by_question(contender, measure), self._by_question(FIRSTP, measure)
        return fmean(value - firsts[query] for query, value in ours.items())

    def _values(self, one: str, other: str, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """Arrange two rankers' values of the questions that both were asked. Shapes: (S, Q), (S', Q)."""
        asked = [self.found[name][0][measure].keys() for name in (one, other)]
        both = [query for query in asked[0] if query in asked[1]]
        ours, theirs = (
            np.array([[values[measure][query] for query in both] for values in self.found[name]])
            for name in (one, other)
        )
        return ours, theirs

    def difference(self, one: str, other: str, measure: str) -> tuple[float, str]:
        """The difference of two rankers, 0 if it is not significant, and its figures."""
        its, p = self.contrasts[one, other, measure], self._p.get((one, other, measure))
        theirs = self.mean(other, measure)
        told = f"{theirs + its.difference:.3f} against {theirs:.3f}, p {_p(p)}"
        told += f", {its.detectable:.3f} is detectable"
        return its.difference if p is not None and p < ALPHA else 0.0, told

    def _by_question(self, contender: str, measure: str) -> dict[str, float]:
        seeds = self.found[contender]
        return {query: fmean(values[measure][query] for values in seeds) for query in seeds[0][measure]}

    def findings(self) -> list[Finding]:
        """Apply every rule."""
        return [
            self._small_under_bias(),
            self._at_chance("FirstP is at chance on Far, zero-shot.", _ZERO_SHOT),
            self._at_chance("FirstP stays at chance on Far when it is trained there.", _TUNED),
            self._cost_of_truncation(),
            self._transfers("MaxP transfers to Far.", MAXP),
            self._transfers("PARADE Attn transfers to Far.", ATTN),
            self._falls(),
            self._wins(),
            self._positions_are_why(),
            self._average_catches_up(),
        ]

    def _small_under_bias(self) -> Finding:
        rule = "the best lead over FirstP on Biased is at most a quarter of the best lead on Far, zero-shot"
        sentence = "Under bias, reading beyond the first chunk gains little."
        if FIRSTP not in self.found or len(self.found) < 2:
            return Finding(sentence, rule, None, "")
        leads = {
            measure: max(self.lead(each, measure) for each in self.found) for measure in (_BIASED, _ZERO_SHOT)
        }
        figures = f"{leads[_BIASED]:+.3f} on Biased, {leads[_ZERO_SHOT]:+.3f} on Far"
        return Finding(sentence, rule, leads[_BIASED] <= leads[_ZERO_SHOT] / 4, figures)

    def _at_chance(self, sentence: str, measure: str) -> Finding:
        rule = f"its MRR is within {self.chance.bound:.3f} of chance, {self.chance.mrr:.3f} (99% interval)"
        if FIRSTP not in self.found:
            return Finding(sentence, rule, None, "", is_check=True)
        mrr = self.mean(FIRSTP, measure)
        return Finding(sentence, rule, self.chance.covers(mrr), f"{mrr:.3f}", is_check=True)

    def _cost_of_truncation(self) -> Finding:
        sentence = "Truncation costs FirstP all later passages: it finds only a passage in chunk 1."
        rule = "FirstP's MRR falls below half after place 1; MaxP's MRR stays at 0.9 or more of its place 1"
        if not {FIRSTP, MAXP} <= self.places.keys():
            return Finding(sentence, rule, None, "", is_check=True)
        kept = {}
        for name in (FIRSTP, MAXP):
            front, *behind = (fmean(column) for column in zip(*self.places[name], strict=True))
            kept[name] = (max(behind) if name == FIRSTP else min(behind)) / front
        figures = (
            f"FirstP keeps {kept[FIRSTP]:.0%} at its best later place, MaxP {kept[MAXP]:.0%} at its worst"
        )
        came_out = kept[FIRSTP] < 0.5 and kept[MAXP] >= 0.9
        return Finding(sentence, rule, came_out, figures, is_check=True)

    def _transfers(self, sentence: str, contender: str) -> Finding:
        rule = "zero-shot on Far it is above FirstP, and has at least 0.8 of its fine-tuned MRR"
        if not {FIRSTP, contender} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        above, told = self.difference(contender, FIRSTP, _ZERO_SHOT)
        share = self.mean(contender, _ZERO_SHOT) / self.mean(contender, _TUNED)
        return Finding(sentence, rule, above > 0 and share >= 0.8, f"{told}; {share:.0%} of fine-tuned")

    def _falls(self) -> Finding:
        sentence = "RAND-L2 transfers worse: it learns the positions of relevant passages."
        rule = "zero-shot on Far, MaxP and PARADE Attn are both above it"
        if not {MAXP, ATTN, RAND} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        over = {name: self.difference(each, RAND, _ZERO_SHOT) for name, each in _RIVALS.items()}
        return _both(sentence, rule, over)

    def _wins(self) -> Finding:
        sentence = "RAND-L2 wins after fine-tuning on Far."
        rule = "fine-tuned on Far, it is above both MaxP and PARADE Attn"
        if not {MAXP, ATTN, RAND} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        over = {name: self.difference(RAND, each, _TUNED) for name, each in _RIVALS.items()}
        return _both(sentence, rule, over)

    def _positions_are_why(self) -> Finding:
        sentence = "Position embeddings are the reason why it transfers worse (the paper's conjecture)."
        rule = "zero-shot on Far, RAND-L2 without positions is above RAND-L2, and not below it on Biased"
        if not {RAND, UNPLACED} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        above, told = self.difference(UNPLACED, RAND, _ZERO_SHOT)
        of_biased, told_of_biased = self.difference(UNPLACED, RAND, _BIASED)
        came_out = above > 0 and of_biased >= 0  # only a significant fall counts
        return Finding(sentence, rule, came_out, f"{told}; on Biased {told_of_biased}")

    def _average_catches_up(self) -> Finding:
        sentence = "AvgP is poor zero-shot, and learns on Far."
        rule = "zero-shot on Far MaxP is above it, and it gains more than MaxP by fine-tuning"
        if not {AVGP, MAXP} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        above, told = self.difference(MAXP, AVGP, _ZERO_SHOT)
        gains = {each: self.mean(each, _TUNED) - self.mean(each, _ZERO_SHOT) for each in (AVGP, MAXP)}
        told += f"; fine-tuning: AvgP {gains[AVGP]:+.3f}, MaxP {gains[MAXP]:+.3f}"
        return Finding(sentence, rule, above > 0 and gains[AVGP] > gains[MAXP], told)


_RIVALS = {"MaxP": MAXP, "PARADE Attn": ATTN}


def _both(sentence: str, rule: str, over: Mapping[str, tuple[float, str]]) -> Finding:
    figures = "; ".join(f"{name}: {told}" for name, (_, told) in over.items())
    return Finding(sentence, rule, all(above > 0 for above, _ in over.values()), figures)


def _p(p: float | None) -> str:
    return "–" if p is None else "below 0.001" if p < 0.001 else f"{p:.3f}"
