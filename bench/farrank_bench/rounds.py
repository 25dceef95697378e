"""Contenders, rounds in which all of them take turns, and contenders in fresh processes."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any

from farrank_bench.report import PartlyFailed, Row, at_least

# The scores of each call's documents, in the order of the calls.
Scores = tuple[tuple[float, ...], ...]

PASS_TIMEOUT_S = 900.0


class ContenderFailed(RuntimeError):
    """A contender could not be started or did not answer; the message says why."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """The time and result of one pass over the work. `scores` is empty if only the speed counts.

    `count` is the number of documents or pairs.
    """

    seconds: float
    count: int
    scores: Scores = ()

    @property
    def per_s(self) -> float:
        """Documents or pairs per second."""
        return self.count / self.seconds


# A loaded model: a call does all work once, as fast as it can. It may raise ContenderFailed.
Contender = Callable[[], PassResult]


@dataclass(slots=True)
class Rounds:
    """Each contender's speed in each round and its scores, or the reason why it failed."""

    speeds: dict[str, list[float]] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ratios(self, name: str, other: str) -> list[float]:
        """Divide one contender's speed by another's, round by round.

        Raises: KeyError if either was not measured.
        """
        return [mine / theirs for mine, theirs in zip(self.speeds[name], self.speeds[other], strict=True)]

    def speed_row(self, name: str, what: str) -> Row:
        """Report a contender's speed, or why there is none."""
        return at_least(what, self.speeds.get(name, ()), None, ".1f", missing=self.failed.get(name, ""))

    def ratio_row(
        self, name: str, other: str, what: str, limit: float | None = None, form: str = ".3f"
    ) -> Row:
        """Report the ratio of two contenders' speeds, and compare it with a limit, if any."""
        missing = self.failed.get(name) or self.failed.get(other) or ""
        return at_least(what, [] if missing else self.ratios(name, other), limit, form, missing=missing)


def whole(rows: list[Row], *found: Rounds) -> list[Row]:
    """Return a section's rows if no contender of any rounds failed.

    Raises: PartlyFailed.
    """
    failed = [name for rounds in found for name in rounds.failed]
    if failed:
        raise PartlyFailed(f"failed: {'; '.join(dict.fromkeys(failed))}", rows)
    return rows


def measure_rounds(contenders: Mapping[str, Contender], rounds: int) -> Rounds:
    """Let all contenders score once unmeasured, then once in each round.

    A contender that fails is left out of the remaining rounds, and its speeds so far are dropped.
    """
    found = Rounds()
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            if name in found.failed:
                continue
            try:
                scored = contender()
            except ContenderFailed as error:
                found.failed[name] = str(error)
                found.speeds.pop(name, None)
                print(f"  {name} failed: {error}", flush=True)
                continue
            if number == 0:
                found.scores[name] = scored.scores
            else:
                found.speeds.setdefault(name, []).append(scored.per_s)
            when = f"round {number}" if number else "warm-up"
            print(f"  {when}: {name} {scored.per_s:.1f}/s", flush=True)
    return found


@dataclass(frozen=True, slots=True)
class Child:
    """A process that answers each question that it receives."""

    name: str
    connection: Connection

    def ask(self, question: object = None) -> Any:
        """Send a question and wait for the answer.

        Raises: ContenderFailed if the process ends, or takes too long.
        """
        try:
            self.connection.send(question)
        except OSError as error:
            raise ContenderFailed(f"{self.name}'s process ended; its output is above") from error
        return self.hear()

    def hear(self) -> Any:
        """Wait for the next answer. Raises: as `ask`."""
        try:
            if not self.connection.poll(PASS_TIMEOUT_S):
                raise ContenderFailed(f"{self.name} gave no answer in {PASS_TIMEOUT_S:.0f} s")
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise ContenderFailed(f"{self.name}'s process ended; its output is above") from error


@contextmanager
def child(name: str, answer: Callable[..., None], *arguments: object, **environment: str) -> Iterator[Child]:
    """Run a function in a fresh process until the block is left. It gets a connection and the arguments."""
    ours, theirs = Pipe()
    process = get_context("spawn").Process(target=answer, args=(theirs, *arguments), daemon=True)
    kept = dict(os.environ)
    os.environ.update(environment)
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(kept)
    theirs.close()
    try:
        yield Child(name, ours)
    finally:
        process.kill()
        process.join()
        ours.close()
