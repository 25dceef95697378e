"""What is asked of a contender, and rounds in which all of them take turns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# Scores of each call's documents, in the calls' order.
Scores = tuple[tuple[float, ...], ...]


class ContenderFailed(RuntimeError):
    """A contender could not be started, or stopped answering; the message says why."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What one pass over the calls took and gave; no scores where speed alone was asked for."""

    seconds: float
    documents: int
    scores: Scores = ()

    @property
    def documents_per_s(self) -> float:
        """Documents per second."""
        return self.documents / self.seconds


class Contender(Protocol):
    """A loaded model that scores the same calls again and again."""

    def score(self) -> Scored:
        """Score all calls once, as fast as the contender can.

        Raises: ContenderFailed.
        """
        ...


@dataclass(slots=True)
class Rounds:
    """By contender: documents/s of each round, the scores, or why it is missing."""

    speeds: dict[str, list[float]] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ratios(self, name: str, other: str) -> list[float]:
        """Divide one contender's speed by another's, round by round.

        Raises: KeyError if either was not measured.
        """
        return [mine / theirs for mine, theirs in zip(self.speeds[name], self.speeds[other], strict=True)]


def measure_rounds(contenders: Mapping[str, Contender], rounds: int) -> Rounds:
    """Let everybody score once unmeasured, then once in each round.

    Who fails is left out from there on, with all that was measured of it.
    """
    found = Rounds()
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            if name in found.failed:
                continue
            try:
                scored = contender.score()
            except ContenderFailed as error:
                found.failed[name] = str(error)
                found.speeds.pop(name, None)
                continue
            if number == 0:
                found.scores[name] = scored.scores
            else:
                found.speeds.setdefault(name, []).append(scored.documents_per_s)
            when = f"round {number}" if number else "warm-up"
            print(f"  {when}: {name} {scored.documents_per_s:.1f} documents/s", flush=True)
    return found
