"""What was measured, and the file that it is kept in from the first ranker on."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from farrank_loadtest.efficiency.timing import Timed
from farrank_loadtest.errors import InputError, LoadtestError

FILE = "efficiency.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """All that two measurements must share to stand in one plot.

    `documents` are ids and their tokens, `trained` the folders of rankers whose weights were given.
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
class Measured:
    """A ranker and its FirstP, and the longest input that each can make, in tokens."""

    ranker: str
    firstp: str
    ranker_timed: Timed
    firstp_timed: Timed
    ranker_longest: int
    firstp_longest: int

    @property
    def run_time(self) -> float:
        """The median over FirstP's."""
        return self.ranker_timed.median_s / self.firstp_timed.median_s

    @property
    def run_times(self) -> tuple[float, float]:
        """The lowest and the highest of the rounds."""
        rounds = zip(self.ranker_timed.client_s, self.firstp_timed.client_s, strict=True)
        ratios = [mine / first for mine, first in rounds]
        return min(ratios), max(ratios)

    @property
    def inputs(self) -> float:
        """Inputs of the encoder over FirstP's."""
        return self.ranker_timed.inputs / self.firstp_timed.inputs

    @property
    def tokens(self) -> float:
        """Positions that the encoder computed over FirstP's."""
        return self.ranker_timed.padded_tokens / self.firstp_timed.padded_tokens

    @property
    def tokens_if_padded(self) -> float:
        """The same, were every chunk padded to the longest input, as the papers' models do."""
        mine, first = self.ranker_timed.chunks, self.firstp_timed.chunks
        return mine * self.ranker_longest / (first * self.firstp_longest)

    @property
    def cost_of_token(self) -> float:
        """The encoder's time for a position over FirstP's."""
        mine, first = self.ranker_timed, self.firstp_timed
        return median(mine.encoder_s) / median(first.encoder_s) / self.tokens

    @property
    def aggregator_share(self) -> float:
        """The aggregator's part of what the caller waited."""
        return median(self.ranker_timed.aggregator_s) / self.ranker_timed.median_s


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured under the same conditions, by ranker."""

    conditions: Conditions
    command: str
    measured: Mapping[str, Measured]

    def write(self, folder: Path) -> None:
        """Write the file so that it is whole at every moment.

        Raises: LoadtestError if it cannot be written.
        """
        document = {"format": FORMAT, **asdict(self), "measured": [asdict(m) for m in self.measured.values()]}
        fresh = folder / f".{FILE}.new"
        try:
            fresh.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(fresh, folder / FILE)
        except OSError as error:
            raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> "Results":
        """Read what `write` wrote.

        Raises: InputError naming the file if it is something else.
        """
        path = folder / FILE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise ValueError(f"format is {document['format']!r}; {FORMAT} is read")
            conditions = Conditions(
                **{**document["conditions"], "settings": tuple(document["conditions"]["settings"])}
            )
            measured = [_measured(each) for each in document["measured"]]
            return cls(conditions, document["command"], {each.ranker: each for each in measured})
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: not a result of `farrank loadtest efficiency` ({error})") from error


def check_same(folder: Path, kept: Conditions, now: Conditions) -> None:
    """Refuse to go on under other conditions.

    Raises: LoadtestError naming the first that differs.
    """
    for each in fields(Conditions):
        old, new = getattr(kept, each.name), getattr(now, each.name)
        if old != new:
            raise LoadtestError(
                f"{folder / FILE}: was measured with {each.name} {old!r}, not {new!r}: "
                "the two do not compare; name another folder"
            )


def _measured(item: Mapping[str, Any]) -> Measured:
    return Measured(**{**item, **{name: _timed(item[name]) for name in ("ranker_timed", "firstp_timed")}})


def _timed(item: Mapping[str, Any]) -> Timed:
    in_rounds = {name: tuple(value) for name, value in item.items() if isinstance(value, list)}
    return Timed(**{**item, **in_rounds})
