"""The plan of adaptive depth: how many chunks of which documents a ranker reads, and in which rounds."""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from farrank_rankers.errors import SpecError
from farrank_rankers.family import check_count
from farrank_rankers.json_values import read_value

# Each round waits for the one before.
MAX_ROUNDS = 8
# No document that a server accepts has more.
MAX_CHUNKS = 1_000_000
# A larger prior would outweigh every word: the BM25 to which it is added is at most 1.
MAX_PRIOR = 100.0


@dataclass(frozen=True, slots=True)
class Round:
    """Read `chunks` more chunks of each of the best documents, `share` of all.

    Raises: SpecError naming field, value and limit.
    """

    share: float
    chunks: int

    def __post_init__(self) -> None:
        """Check both limits."""
        read_value(float, self.share, "share", SpecError)
        if not 0 < self.share <= 1:
            raise SpecError(f"share is {self.share}; it must be above 0 and at most 1")
        check_count("chunks", self.chunks, at_least=1, at_most=MAX_CHUNKS)

    def __str__(self) -> str:
        documents = "all documents" if self.share == 1 else f"the best {100 * self.share:.3g}%"
        return f"{self.chunks} {'chunk' if self.chunks == 1 else 'chunks'} of {documents}"

    def documents(self, count: int) -> int:
        """Give the number of documents that it reads of this number."""
        return max(1, ceil(self.share * count))


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurement that confirmed a plan, on judged queries other than those that chose it.

    The plan had to keep the share `keep` of full reading's mean `measure`. It kept `kept`, in a 95% interval
    from `low` to `high`, on this number of `queries`. It read `chunks` and `tokens` of encoder inputs of a
    document, both in the mean.
    Raises: SpecError naming field, value and limit.
    """

    measure: str
    keep: float
    kept: float
    low: float
    high: float
    queries: int
    chunks: float
    tokens: float

    def __post_init__(self) -> None:
        """Check every field's limits."""
        if not isinstance(self.measure, str) or not self.measure:
            raise SpecError(f"measure is {self.measure!r}; it must be a name")
        check_count("queries", self.queries, at_least=1)
        for name in ("keep", "kept", "low", "high", "chunks", "tokens"):
            value = read_value(float, getattr(self, name), name, SpecError)
            if value < 0:
                raise SpecError(f"{name} is {value}; it must be at least 0")
        if not 0 < self.keep < 1:
            raise SpecError(f"keep is {self.keep}; it must be above 0 and below 1")
        if not self.low <= self.high:
            raise SpecError(f"low is {self.low}; it must be at most high, {self.high}")

    def __str__(self) -> str:
        return f"calibrated to keep {100 * self.keep:.3g}% of {self.measure}"


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """The rounds of a ranker's adaptive depth, and the weight of a chunk's place in the selector.

    The first round reads all documents, and no later one reads a larger share than the one before. `prior`
    raises early chunks: the selector adds `prior / (1 + place)` to a chunk's BM25, which is at most 1.
    `figures` are those of a calibrated plan.
    Raises: SpecError naming field, value and limit.
    """

    rounds: tuple[Round, ...] = (Round(1.0, 2),)
    prior: float = 0.0
    figures: Figures | None = None

    def __post_init__(self) -> None:
        """Check the rounds against each other, and the prior's limits."""
        object.__setattr__(self, "rounds", tuple(self.rounds))
        if not 1 <= len(self.rounds) <= MAX_ROUNDS:
            raise SpecError(f"rounds has {len(self.rounds)} rounds; it must have 1 to {MAX_ROUNDS}")
        shares = [each.share for each in self.rounds]
        if shares[0] != 1:
            raise SpecError(f"rounds[0].share is {shares[0]}; it must be 1: the first round reads all")
        for number, (before, share) in enumerate(pairwise(shares), 1):
            if share > before:
                name = f"rounds[{number}].share"
                raise SpecError(f"{name} is {share}; it must be at most {before}, that of the round before")
        read_value(float, self.prior, "prior", SpecError)
        if not 0 <= self.prior <= MAX_PRIOR:
            raise SpecError(f"prior is {self.prior}; it must be between 0 and {MAX_PRIOR:g}")

    def __str__(self) -> str:
        prior = f", with a prior of {self.prior:g}" if self.prior else ""
        return ", then ".join(map(str, self.rounds)) + prior

    def most_chunks(self, documents: int) -> int:
        """Give the most chunks that it reads of this number of documents."""
        return sum(each.documents(documents) * each.chunks for each in self.rounds)


# For rankers whose scores of different depths compare: about as many chunks as 2 of all documents.
READ_ON = DepthPlan((Round(1.0, 1), Round(0.3, 3)))
