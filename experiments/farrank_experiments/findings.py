"""The results, and which of the paper's findings they confirm: each by a rule that the report states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from farrank_experiments.asking import Values
from farrank_experiments.contenders import ATTN, AVGP, FIRSTP, MAXP, RAND, UNPLACED
from farrank_experiments.questions import BIASED, FAR, NATURAL, at_place
from farrank_loadtest.accuracy.evaluation import paired_tests

ALPHA = 0.01
# Standard errors that a mean of random orders exceeds in 1 of 100 experiments.
_ERRORS = 2.58

# Measure -> the stage of training, and the condition of the candidates.
MEASURES: Mapping[str, tuple[str, str]] = {
    "Biased": (BIASED, BIASED),
    "Far, zero-shot": (BIASED, FAR),
    "Far, fine-tuned": (FAR, FAR),
    "articles": (BIASED, NATURAL),
    "articles, fine-tuned": (FAR, NATURAL),
}
_BIASED, _ZERO_SHOT, _TUNED, _ARTICLES, _ = MEASURES

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

    `came_out` is None if rankers that the rule compares were not measured.
    """

    sentence: str
    rule: str
    came_out: bool | None
    figures: str


class Judge:
    """Applies the rules to one track's figures. `places` is `by_place` of the rankers trained on Biased."""

    def __init__(
        self, found: Measured, places: Mapping[str, Sequence[Sequence[float]]], chance: Chance
    ) -> None:
        self.found, self.places, self.chance = found, places, chance

    def mean(self, contender: str, measure: str) -> float:
        """Average over questions and seeds."""
        return fmean(fmean(values[measure].values()) for values in self.found[contender])

    def lead(self, contender: str, measure: str) -> float:
        """Average its lead over FirstP on the questions that it was asked."""
        ours, firsts = self._by_question(contender, measure), self._by_question(FIRSTP, measure)
        return fmean(value - firsts[query] for query, value in ours.items())

    def above(self, one: str, one_measure: str, other: str, other_measure: str) -> tuple[bool, str]:
        """Whether one is above the other: by the t-test over questions, and in the mean of every seed."""
        ours, theirs = self._by_question(one, one_measure), self._by_question(other, other_measure)
        p, _ = paired_tests([ours[each] for each in theirs], list(theirs.values()), resamples=1)
        seeds = [
            fmean(mine[one_measure].values()) > fmean(its[other_measure].values())
            for mine, its in zip(self.found[one], self.found[other], strict=True)
        ]
        told = f"{self.mean(one, one_measure):.3f} against {self.mean(other, other_measure):.3f}"
        told += f", p {_p(p)}, above in {sum(seeds)} of {len(seeds)} seeds"
        return p is not None and p < ALPHA and all(seeds), told

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
            return Finding(sentence, rule, None, "")
        mrr = self.mean(FIRSTP, measure)
        return Finding(sentence, rule, self.chance.covers(mrr), f"{mrr:.3f}")

    def _cost_of_truncation(self) -> Finding:
        sentence = "Truncation costs FirstP all later passages: it finds only a passage in chunk 1."
        rule = "FirstP's MRR falls below half after place 1; MaxP's MRR stays at 0.9 or more of its place 1"
        if not {FIRSTP, MAXP} <= self.places.keys():
            return Finding(sentence, rule, None, "")
        kept = {}
        for name in (FIRSTP, MAXP):
            front, *behind = (fmean(column) for column in zip(*self.places[name], strict=True))
            kept[name] = (max(behind) if name == FIRSTP else min(behind)) / front
        figures = (
            f"FirstP keeps {kept[FIRSTP]:.0%} at its best later place, MaxP {kept[MAXP]:.0%} at its worst"
        )
        return Finding(sentence, rule, kept[FIRSTP] < 0.5 and kept[MAXP] >= 0.9, figures)

    def _transfers(self, sentence: str, contender: str) -> Finding:
        rule = "zero-shot on Far it is above FirstP, and has at least 0.8 of its fine-tuned MRR"
        if not {FIRSTP, contender} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        above, told = self.above(contender, _ZERO_SHOT, FIRSTP, _ZERO_SHOT)
        share = self.mean(contender, _ZERO_SHOT) / self.mean(contender, _TUNED)
        return Finding(sentence, rule, above and share >= 0.8, f"{told}; {share:.0%} of fine-tuned")

    def _falls(self) -> Finding:
        sentence = "RAND-L2 transfers worse: it learns the positions of relevant passages."
        rule = "zero-shot on Far, MaxP and PARADE Attn are both above it"
        if not {MAXP, ATTN, RAND} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        over = {name: self.above(each, _ZERO_SHOT, RAND, _ZERO_SHOT) for name, each in _RIVALS.items()}
        return _both(sentence, rule, over)

    def _wins(self) -> Finding:
        sentence = "RAND-L2 wins after fine-tuning on Far."
        rule = "fine-tuned on Far, it is above both MaxP and PARADE Attn"
        if not {MAXP, ATTN, RAND} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        over = {name: self.above(RAND, _TUNED, each, _TUNED) for name, each in _RIVALS.items()}
        return _both(sentence, rule, over)

    def _positions_are_why(self) -> Finding:
        sentence = "Position embeddings are the reason why it transfers worse (the paper's conjecture)."
        rule = "zero-shot on Far, RAND-L2 without positions is above RAND-L2, and not below it on Biased"
        if not {RAND, UNPLACED} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        above, told = self.above(UNPLACED, _ZERO_SHOT, RAND, _ZERO_SHOT)
        # The test is reversed, so that only a significant fall counts.
        below, of_biased = self.above(RAND, _BIASED, UNPLACED, _BIASED)
        return Finding(sentence, rule, above and not below, f"{told}; on Biased, with positions {of_biased}")

    def _average_catches_up(self) -> Finding:
        sentence = "AvgP is poor zero-shot, and learns on Far."
        rule = "zero-shot on Far MaxP is above it, and it gains more than MaxP by fine-tuning"
        if not {AVGP, MAXP} <= self.found.keys():
            return Finding(sentence, rule, None, "")
        above, told = self.above(MAXP, _ZERO_SHOT, AVGP, _ZERO_SHOT)
        gains = {each: self.mean(each, _TUNED) - self.mean(each, _ZERO_SHOT) for each in (AVGP, MAXP)}
        told += f"; fine-tuning: AvgP {gains[AVGP]:+.3f}, MaxP {gains[MAXP]:+.3f}"
        return Finding(sentence, rule, above and gains[AVGP] > gains[MAXP], told)


_RIVALS = {"MaxP": MAXP, "PARADE Attn": ATTN}


def _both(sentence: str, rule: str, over: Mapping[str, tuple[bool, str]]) -> Finding:
    figures = "; ".join(f"{name}: {told}" for name, (_, told) in over.items())
    return Finding(sentence, rule, all(above for above, _ in over.values()), figures)


def _p(p: float | None) -> str:
    return "–" if p is None else "below 0.001" if p < 0.001 else f"{p:.3f}"
