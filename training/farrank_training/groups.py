"""Training data: queries, each with a relevant document and others that must rank below it."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """A query and documents to order, the relevant one first.

    `teacher` holds another model's scores of the documents, for MarginMSE and KL. `query_id` serves messages
    and random draws; in files without ids it is the line's number. `epoch` serves draws made when the group
    is read. `keys` name the documents among those of all groups, by default by their texts, and `relevant`
    has the keys of all documents that are known to be relevant to the query. A group that is not `counted`
    fills up a batch, and has no part in the loss.
    """

    query_id: str
    query: str
    documents: tuple[str, ...]
    teacher: tuple[float, ...] | None = None
    epoch: int = 0
    keys: tuple[Hashable, ...] = ()
    relevant: frozenset[Hashable] = frozenset()
    counted: bool = True

    def __post_init__(self) -> None:
        """Fill in the keys."""
        if not self.keys:
            object.__setattr__(self, "keys", self.documents)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A query with all its relevant documents, and others drawn from those that are not."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


class TrainingSet:
    """Groups of an epoch, all of one size.

    A group is the same in every process: the draws depend on the seed, the epoch and the query_id alone.
    `notes` say what was left out, a line each, for the person who started the training.
    """

    notes: Sequence[str]

    def __len__(self) -> int:
        """Count the groups of an epoch."""
        raise NotImplementedError

    def group(self, index: int, epoch: int) -> Group:
        """Draw a query's documents for an epoch; the texts are read now."""
        raise NotImplementedError

    def candidates(self, index: int, negatives: int) -> Candidates:
        """Read a query's relevant documents, and the first `negatives` drawn, or all if there are fewer."""
        raise NotImplementedError

    def of_seed(self, seed: int) -> "TrainingSet":
        """Give the same set with another seed's draws, if it draws; nothing is read again."""
        return self

    @property
    def checksums(self) -> Mapping[str, str]:
        """Give the SHA-256 of each file that the set was read from; this reads the whole files.

        Pipes and standard input cannot be read again and are left out.
        """
        return {}


def drawn(count: int, of: int, *key: object) -> list[int]:
    """Draw `count` of the numbers below `of`; the key alone determines the draw, on every machine.

    No number repeats before all others were drawn.
    """
    left: list[int] = []
    found: list[int] = []
    for place in range(count):
        left = left or list(range(of))
        digest = hashlib.blake2b(repr((*key, place)).encode(), digest_size=16).digest()
        at = int.from_bytes(digest) % len(left)
        left[at], left[-1] = left[-1], left[at]
        found.append(left.pop())
    return found
