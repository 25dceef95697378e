"""The calls to send: read from files (`recorded`), or generated with given lengths (`synthetic`)."""

import statistics
from dataclasses import dataclass

from farrank_loadtest.targets import CandidateDocument
from farrank_trec.errors import InputError


@dataclass(frozen=True, slots=True)
class Call:
    """One request to send: a query and its candidates. `query_id` is a run's, else empty."""

    query: str
    documents: tuple[CandidateDocument, ...]
    query_id: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The documents' texts."""
        return tuple(document.text for document in self.documents)


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls that are sent in turn, starting again after the last. `source` names their origin.

    Raises: InputError if there is none.
    """

    source: str
    calls: tuple[Call, ...]

    def __post_init__(self) -> None:
        if not self.calls:
            raise InputError(f"{self.source}: holds no call")

    def describe(self) -> str:
        """Describe the amount of work in one line."""
        counts = [len(call.documents) for call in self.calls]
        lengths = [len(document.text) for call in self.calls for document in call.documents]
        return (
            f"{len(self.calls):,} calls from {self.source}; documents a call: {_spread(counts)}; "
            f"characters a document: {_spread(lengths)}"
        )


def _spread(values: list[int]) -> str:
    low, middle, high = min(values), round(statistics.median(values)), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,})"
