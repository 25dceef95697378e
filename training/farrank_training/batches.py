"""Turn groups of texts into the arguments of `Ranker.forward`, in the process that loads data."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypedDict

import torch
from torch import Tensor

from farrank_rankers.chunking import PAPERS_DOCUMENT_TOKENS, WHOLE_DOCUMENT, adjusted
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import Chunk, EncoderInput, TokenizedText, collate
from farrank_training.chunk_subsets import chunks_to_learn, most_to_learn, promising_chunks
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import Group


class TrainingBatch(TypedDict):
    """B groups of D documents in P encoder inputs, of which `counted` ones count in the loss: all or none.

    Shapes: batch (P, L) each, D counts whose sum is P; query (D, L) each, (1, L) if there is one group,
    (B, L) if all queries meet all documents, None in a plan of pairs; B sizes whose sum is D; teacher
    (B, 1 + n), None without a teacher's scores; competing (B, D) as in `competing_documents`, None if queries
    meet only their own documents.
    """

    batch: tuple[Tensor, ...]
    counts: list[int]
    query: tuple[Tensor, ...] | None
    sizes: list[int]
    counted: int
    teacher: Tensor | None
    competing: Tensor | None


def training_reader(reader: Reader, document_tokens: int | None) -> Reader:
    """Limit a ranker's reader to `document_tokens` of a document, for training.

    None is the ranker's own limit, or the papers' if it has none: the memory of a step grows with its chunks.
    """
    chunking = reader.spec.chunking
    own = chunking.max_document_tokens
    most = document_tokens or (own if own < WHOLE_DOCUMENT else PAPERS_DOCUMENT_TOKENS)
    if most >= own:
        return reader
    limited = replace(reader.spec, chunking=adjusted(chunking, max_document_tokens=most))
    return Reader(limited, reader.tokenizer, reader.backbone)


def placed_reader(reader: Reader, config: TrainingConfig) -> Reader:
    """Limit the chunks of a ranker whose aggregator has positions for them to those that training reads.

    Other positions stay as they were initialised, so nothing may read them later.
    """
    if config.depth == "adaptive":
        read = reader.spec.most_chunks(most_to_learn(reader.spec, config.max_chunks))
    else:
        read = training_reader(reader, config.document_tokens).spec.most_chunks(config.max_chunks)
    assert read is not None, "its aggregator has positions for chunks"
    known = getattr(reader.spec.options, "trained_chunks", None) or 0
    options = replace(reader.spec.options, trained_chunks=max(known, read))  # type: ignore[call-arg]
    return Reader(replace(reader.spec, options=options), reader.tokenizer, reader.backbone)


class Collator:
    """Tokenizes groups and pads their chunks to one batch, on the CPU.

    It holds no weights, so any process that loads data may have one. It reads the first `max_chunks` chunks
    of each document, within `document_tokens` (see `training_reader`). For adaptive depth it reads the most
    promising chunks of whole documents instead: `promising` of each, or a number that is drawn for each group
    with the seed `draws`. With `crossed` all queries of a batch meet all its documents, in a dual plan.
    """

    def __init__(
        self,
        reader: Reader,
        max_chunks: int | None = None,
        document_tokens: int | None = None,
        *,
        promising: int | None = None,
        draws: int | None = None,
        crossed: bool = False,
    ) -> None:
        if max_chunks is not None and max_chunks < 1:
            raise TrainingError(f"max_chunks is {max_chunks}; it must be at least 1")
        is_adaptive = promising is not None or draws is not None
        self.reader = reader if is_adaptive else training_reader(reader, document_tokens)
        self.max_chunks, self.promising, self.draws = max_chunks, promising, draws
        self.crossed = crossed

    def __call__(self, groups: Sequence[Group]) -> TrainingBatch:
        """Leave out groups that do not count, but keep one of them if there are no others.

        Shapes: see `TrainingBatch`.
        Raises: TrainingError if a query holds no token, the groups differ in size, or only some of them have
            a teacher's scores.
        """
        counted = [group for group in groups if group.counted]
        groups = counted or groups[:1]
        teacher = _teacher(groups)
        reader, dual = self.reader, self.reader.spec.plan == "dual"
        inputs: list[EncoderInput] = []
        queries: list[EncoderInput] = []
        counts: list[int] = []
        for group in groups:
            query = self._read_query(group)
            for chunks in self._read_documents(group, query):
                inputs += [reader.chunk_input(None if dual else query, chunk) for chunk in chunks]
                counts.append(len(chunks))
            if dual:
                # A single group shares one query row; with several groups each document has its own row,
                # unless it meets all queries.
                times = 1 if len(groups) == 1 or self.crossed else len(group.documents)
                queries += [reader.query_input(query)] * times
        return TrainingBatch(
            batch=self._tensors(inputs),
            counts=counts,
            query=self._tensors(queries) if dual else None,
            sizes=[len(group.documents) for group in groups],
            counted=len(counted),
            teacher=teacher,
            competing=competing_documents(groups) if self.crossed else None,
        )

    def _read_query(self, group: Group) -> TokenizedText:
        query = self.reader.read_query(group.query)
        if not len(query):
            raise TrainingError(f"query {group.query_id!r} holds no token; it needs at least 1")
        return query

    def _read_documents(self, group: Group, query: TokenizedText) -> Iterable[Sequence[Chunk]]:
        reader, count = self.reader, self.promising
        if self.draws is not None:
            draw = f"{self.draws} {group.epoch} {group.query_id}"
            count = chunks_to_learn(reader.spec, self.max_chunks, draw)
        if count is not None:
            return promising_chunks(reader, query, group.documents, count)
        documents = (reader.read_document(text, self.max_chunks) for text in group.documents)
        return (reader.split(each, self.max_chunks) for each in documents)

    def _tensors(self, inputs: Sequence[EncoderInput]) -> tuple[Tensor, ...]:
        """Pad inputs to one batch. Shapes: -> input_ids, roles, token_type_ids (P, L)."""
        return tuple(torch.from_numpy(array) for array in collate(inputs, self.reader.pad_id))


def competing_documents(groups: Sequence[Group]) -> Tensor:
    """Say which documents of a batch compete for each query: its own, and others not known to be relevant.

    A document of another group is left out if its key or its text is that of a relevant document of the
    query, or if both groups have the same query and it is the other's relevant document.
    Shapes: -> (B, D) bool.
    """
    found: list[bool] = []
    for place, group in enumerate(groups):
        for other_place, other in enumerate(groups):
            same_query = other.query == group.query
            for number, (key, text) in enumerate(zip(other.keys, other.documents, strict=True)):
                known = key in group.relevant or text == group.documents[0] or (same_query and number == 0)
                found.append(place == other_place or not known)
    return torch.tensor(found).reshape(len(groups), -1)


def _teacher(groups: Sequence[Group]) -> Tensor | None:
    """Collect the teacher's scores. Shapes: -> (B, 1 + n), None if no group has any."""
    sizes = {len(group.documents) for group in groups}
    if len(sizes) != 1:
        raise TrainingError(f"groups of {' and '.join(map(str, sorted(sizes)))} documents in one batch")
    scores = [group.teacher for group in groups if group.teacher is not None]
    if not scores:
        return None
    if len(scores) != len(groups) or set(map(len, scores)) != sizes:
        raise TrainingError("every document of a batch needs a teacher's score, or none may have one")
    return torch.tensor(list(chain.from_iterable(scores)), dtype=torch.float32).reshape(len(groups), -1)
