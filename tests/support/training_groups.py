"""A few groups to train on, from memory, as often as a test asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from farrank_rankers.ranker import Ranker
from farrank_training.training_set import Group

MakeRanker = Callable[..., Ranker]

# Of the words that `tiny_tokenizers` knows.
WORDS = ["query", "windows", "score", "neural", "command", "engine", "hello", "passages"]
FILLER = "the long document and its text over a café "


def triples(count: int = 8, *, others: int = 1) -> list[Group]:
    """Queries of one word each, documents of some chunks that hold it, and others with the next words."""
    groups = []
    for index in range(count):
        words = [WORDS[(index + offset) % len(WORDS)] for offset in range(others + 1)]
        documents = tuple(f"{FILLER}{word} {FILLER * (index % 3)}{word}" for word in words)
        teacher = tuple(float(others - place) for place in range(others + 1))
        groups.append(Group(f"q{index}", words[0], documents, teacher))
    return groups


@dataclass
class Groups:
    """A training set of these groups, each `times` times an epoch; it remembers what was asked for."""

    groups: Sequence[Group]
    times: int = 1
    notes: Sequence[str] = ()
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.groups) * self.times

    def group(self, index: int, epoch: int) -> Group:
        self.asked.append((epoch, index))
        return self.groups[index % len(self.groups)]

    @property
    def checksums(self) -> Mapping[str, str]:
        return {"memory": f"{len(self.groups)}"}
