"""What a ranker learns from: queries, each with a relevant document and others that must stand below it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Group:
    """A query and documents to order, the relevant one first.

    `teacher` holds another model's scores of the documents, which MarginMSE learns from. `query_id` is for
    messages and random draws; of files without ids it is the line's number.
    """

    query_id: str
    query: str
    documents: tuple[str, ...]
    teacher: tuple[float, ...] | None = None


class TrainingSet(Protocol):
    """Groups of an epoch, all of one size.

    A group is the same in every process: what is drawn follows the seed, the epoch and the query_id.
    """

    def __len__(self) -> int:
        """Count the groups of an epoch."""
        ...

    def group(self, index: int, epoch: int) -> Group:
        """Draw a query's documents for an epoch; the texts are read now."""
        ...

    @property
    def checksums(self) -> Mapping[str, str]:
        """Name the files that the set was read from, with the SHA-256 of each."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Say what was left out, a line each, for whoever started the training."""
        ...
