"""Time a ranker and its FirstP in turns on one server, and write the results to a file."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from farrank_client import Client, FarrankError, Ranking
from farrank_loadtest.depths import Depth
from farrank_loadtest.errors import TargetFailed
from farrank_loadtest.kept_files import read_kept, writing_to
from farrank_trec.errors import InputError


@dataclass(frozen=True, slots=True)
class RankerTimes:
    """The times of one ranker's calls in seconds, a value for each round, and the work of one call.

    `client_s` is the caller's waiting time; encoder and aggregator are the server's own times. `inputs`
    counts the encoder's inputs, `padded_tokens` their positions including padding, and `chunks` the
    documents' chunks: the same number as inputs unless queries are separate inputs.
    """

    client_s: tuple[float, ...]
    encoder_s: tuple[float, ...]
    aggregator_s: tuple[float, ...]
    inputs: int
    chunks: int
    padded_tokens: int

    @property
    def median_s(self) -> float:
        """The median of the caller's waiting times."""
        return median(self.client_s)


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """One call, and the number of rounds in which it is made."""

    query: str
    texts: Sequence[str]
    rounds: int
    timeout_s: float


def time_in_turns(
    address: str, rankers: Mapping[str, Depth], work: RepeatedCall, tell: Callable[[str], None]
) -> dict[str, RankerTimes]:
    """Warm each ranker up with a call of one document, then let them take turns, each at its depth.

    Every other round is in reverse order, so that a machine that slows down affects all rankers alike.
    Raises: TargetFailed at the first call that fails.
    """
    answers: dict[str, list[tuple[float, Ranking]]] = {name: [] for name in rankers}
    with Client(address) as client:
        for name, depth in rankers.items():
            _call(client, name, depth, work, work.texts[:1])
        for number in range(work.rounds):
            for name in rankers if number % 2 == 0 else reversed(list(rankers)):
                answers[name].append(_call(client, name, rankers[name], work, work.texts))
            took = ", ".join(f"{name} {answers[name][-1][0]:.2f} s" for name in rankers)
            tell(f"round {number + 1} of {work.rounds}: {took}")
    return {
        name: RankerTimes(
            client_s=tuple(seconds for seconds, _ in calls),
            encoder_s=tuple(ranking.timings.inference_ns / 1e9 for _, ranking in calls),
            aggregator_s=tuple(ranking.timings.aggregation_ns / 1e9 for _, ranking in calls),
            inputs=calls[-1][1].usage.pairs,
            chunks=calls[-1][1].usage.chunks,
            padded_tokens=calls[-1][1].usage.padded_tokens,
        )
        for name, calls in answers.items()
    }


def _call(
    client: Client, name: str, depth: Depth, work: RepeatedCall, texts: Sequence[str]
) -> tuple[float, Ranking]:
    started_s = time.perf_counter()
    try:
        ranking = client.rerank(work.query, texts, ranker=name, depth=depth, timeout_s=work.timeout_s)
    except FarrankError as error:
        raise TargetFailed(f"ranker {name}: {error.message}", error.code.name) from error
    return time.perf_counter() - started_s, ranking


FILE = "efficiency.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """All that two measurements must share to be compared in one plot.

    `documents` maps ids to numbers of tokens, `trained` maps rankers to the folders of their weights.
    """

    machine: str
    versions: Mapping[str, str]
    precision: str
    device: str
    settings: tuple[str, ...]
    query: str
    documents: Mapping[str, int]
    rounds: int
    trained: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RelativeTimes:
    """The times of a ranker and its FirstP, and the longest input of each, in tokens."""

    ranker: str
    firstp: str
    ranker_timed: RankerTimes
    firstp_timed: RankerTimes
    ranker_longest: int
    firstp_longest: int

    @property
    def run_time(self) -> float:
        """The ratio of the median to FirstP's."""
        return self.ranker_timed.median_s / self.firstp_timed.median_s

    @property
    def run_times(self) -> tuple[float, float]:
        """The lowest and the highest ratio of a round."""
        rounds = zip(self.ranker_timed.client_s, self.firstp_timed.client_s, strict=True)
        ratios = [mine / first for mine, first in rounds]
        return min(ratios), max(ratios)

    @property
    def inputs(self) -> float:
        """The ratio of the encoder's inputs to FirstP's."""
        return self.ranker_timed.inputs / self.firstp_timed.inputs

    @property
    def tokens(self) -> float:
        """The ratio of the encoder's positions to FirstP's."""
        return self.ranker_timed.padded_tokens / self.firstp_timed.padded_tokens

    @property
    def tokens_if_padded(self) -> float:
        """The same ratio if every chunk were padded to the longest input, as in the papers' models."""
        mine, first = self.ranker_timed.chunks, self.firstp_timed.chunks
        return mine * self.ranker_longest / (first * self.firstp_longest)

    @property
    def cost_of_token(self) -> float:
        """The ratio of the encoder's time for a position to FirstP's."""
        mine, first = self.ranker_timed, self.firstp_timed
        return median(mine.encoder_s) / median(first.encoder_s) / self.tokens

    @property
    def aggregator_share(self) -> float:
        """The aggregator's share of the caller's waiting time."""
        return median(self.ranker_timed.aggregator_s) / self.ranker_timed.median_s


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured under the same conditions, by ranker."""

    conditions: Conditions
    command: str
    measured: Mapping[str, RelativeTimes]

    def write(self, folder: Path) -> None:
        """Write the file atomically.

        Raises: LoadtestError if it cannot be written.
        """
        document = asdict(_SavedTimes(FORMAT, self.conditions, self.command, tuple(self.measured.values())))
        fresh = folder / f".{FILE}.new"
        with writing_to(folder):
            fresh.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(fresh, folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> "Results":
        """Read a file of `write`.

        Raises: InputError naming the file if it is something else.
        """
        path = folder / FILE
        kept = read_kept(path, _SavedTimes, "farrank loadtest efficiency")
        if kept.format != FORMAT:
            raise InputError(f"{path}: format is {kept.format}; it must be {FORMAT}")
        return cls(kept.conditions, kept.command, {each.ranker: each for each in kept.measured})


@dataclass(frozen=True, slots=True)
class _SavedTimes:
    format: int
    conditions: Conditions
    command: str
    measured: tuple[RelativeTimes, ...]
