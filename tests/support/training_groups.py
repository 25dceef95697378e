"""A few groups for training in memory, repeated as often as a test needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from farrank_rankers.ranker import Ranker
from farrank_training.groups import Group, TrainingSet
from farrank_training.validation import ValidationSet

MakeRanker = Callable[..., Ranker]

# Words of `tiny_tokenizers`' vocabulary.
WORDS = ["query", "windows", "score", "neural", "command", "engine", "hello", "passages"]
FILLER = "the long document and its text over a café "


def without_dropout(ranker: Ranker) -> Ranker:
    """Make the ranker's scores deterministic, also in training."""
    for module in ranker.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout_prob"):  # of attention
            setattr(module, "dropout_prob", 0.0)  # noqa: B010  # no module's own type has it
    return ranker


def triples(count: int = 8, *, others: int = 1) -> list[Group]:
    """Make queries of one word each, documents with that word, and documents with other words."""
    groups = []
    for index in range(count):
        words = [WORDS[(index + offset) % len(WORDS)] for offset in range(others + 1)]
        documents = tuple(f"{FILLER}{word} {FILLER * (index % 3)}{word}" for word in words)
        teacher = tuple(float(others - place) for place in range(others + 1))
        groups.append(Group(f"q{index}", words[0], documents, teacher))
    return groups


@dataclass
class Groups(TrainingSet):
    """A training set of these groups, each `times` times per epoch. It records the requested groups."""

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


class Texts(dict[str, str]):
    """Texts of documents by their ids, in memory."""

    def text(self, doc_id: str) -> str:
        return self[doc_id]


def validation(count: int = 4) -> ValidationSet:
    """Make queries of one word each, whose candidates are the documents of all queries."""
    groups = triples(count)
    texts = Texts({f"d{place}": group.documents[0] for place, group in enumerate(groups)})
    return ValidationSet(
        {group.query_id: group.query for group in groups},
        {group.query_id: {f"d{place}": 1} for place, group in enumerate(groups)},
        {group.query_id: sorted(texts, reverse=True) for group in groups},
        texts,
    )
