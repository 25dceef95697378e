"""What is sent: calls from files (`recorded`), or made up by length (`synthetic`)."""

import statistics
from dataclasses import dataclass

from farrank_loadtest.targets import Document
from farrank_trec.errors import InputError


@dataclass(frozen=True, slots=True)
class Call:
    """One request to come: a query and the candidates to order by it. `query_id` is a run's, else empty."""

    query: str
    documents: tuple[Document, ...]
    query_id: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The documents' texts."""
        return tuple(document.text for document in self.documents)


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls that are sent in turn, from the first again after the last. `source` says where they are from.

    Raises: InputError if there is none.
    """

    source: str
    calls: tuple[Call, ...]

    def __post_init__(self) -> None:
        if not self.calls:
            raise InputError(f"{self.source}: holds no call")

    def describe(self) -> str:
        """Say in a line how much is sent."""
        counts = [len(call.documents) for call in self.calls]
        lengths = [len(document.text) for call in self.calls for document in call.documents]
        return (
            f"{len(self.calls):,} calls from {self.source}; documents a call: {_spread(counts)}; "
            f"characters a document: {_spread(lengths)}"
        )


def _spread(values: list[int]) -> str:
    low, middle, high = min(values), round(statistics.median(values)), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,})"
