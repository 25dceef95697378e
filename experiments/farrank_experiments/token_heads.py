"""Heads of rankers that read tokens, CEDR and Neural Model 1, on token vectors of a frozen encoder.

A pair's vectors in all layers take 0.8 MB. CEDR reads only similarities, which depend on the order of the
passages, and [CLS]; Neural Model 1 reads the last layer. So training stores the last layer, and the
similarities of the documents of all epochs, which are drawn in advance: all rankers and seeds get the same
documents. Questions to ask are encoded once for all heads and not stored.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import one_hot

from farrank_experiments.asking import Scoring
from farrank_experiments.heads import GroupScores, redrawn
from farrank_experiments.pairs import PairFeatures, arranged
from farrank_experiments.questions import Arrangement, AskedQuestion
from farrank_rankers.families.cedr import Cedr, TokenSimilarities, compared, query_slots
from farrank_rankers.features import Features, PaddedFeatures, batched
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role
from farrank_training.data_sets.window_documents import drawn_place

_LAST, _ROLES = "last", "roles"


def similarities(features: Features, document: Arrangement) -> Tensor:
    """Compare the query in a document's first passage with the tokens of all passages, in all layers.

    Shapes: (P, S, L+1, H) -> (L+1, Q, T).
    """
    read, mask = arranged(features, [document])
    (found,) = compared(read, mask, query_slots(read, read.vectors.shape[2]))
    return found.simmat[0]


def similarity_scores(
    aggregator: Cedr[object], simmats: Sequence[Tensor], last: Features, documents: Sequence[Arrangement]
) -> Tensor:
    """Score documents with CEDR from their similarities and the [CLS] of their passages.

    Shapes: simmats (L+1, Q, T) each, last (P, S, H) with roles -> (D,).
    """
    lengths = (last.token_roles == Role.DOCUMENT).sum(dim=1)  # (P,)
    cls, mask = batched([Features(last.vectors[list(each), 0].float()) for each in documents])
    groups = []
    for simmat, document in zip(simmats, documents, strict=True):
        chunk_of = torch.arange(len(document)).repeat_interleave(lengths[list(document)])  # (T,)
        _, of_query, of_document = simmat.shape
        groups.append(
            TokenSimilarities(
                simmat[None].float(),
                torch.ones(1, of_query, dtype=torch.bool),
                torch.ones(1, of_document, dtype=torch.bool),
                one_hot(chunk_of, mask.shape[1])[None].float(),
            )
        )
    return aggregator.score(aggregator.match(groups, cls.vectors), mask[None])[0]


def read_last(ranker: Ranker, last: Features) -> Features:
    """Let a ranker's encoder compute its features from the last layer. Shapes: (…, S, H) -> (…, S, F)."""
    output = SimpleNamespace(last_hidden_state=last.vectors.float())
    return ranker.encoder.read(output, PaddedFeatures(last.token_roles))


def drawn_documents(question: AskedQuestion, kind: str, epoch: int) -> list[Arrangement]:
    """Draw the documents of a question for an epoch of training."""
    rng = Random(f"{question.query_id}/{kind}/{epoch}")
    place = partial(drawn_place, kind)
    return [redrawn(document, key, place, rng) for key, document in enumerate(question.conditions[kind])]


class KeptTokens:
    """The stored training input of heads, a file for each question, in fp16."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(
        self,
        features: PairFeatures,
        questions: Sequence[AskedQuestion],
        epochs: int,
        progress: Callable[[str], None],
    ) -> None:
        """Encode the pairs of all questions, and store the heads' input for the documents of all epochs."""
        for number, question in enumerate(questions, start=1):
            read = features(question)
            kept = {_LAST: read.vectors[:, :, -1].half().contiguous(), _ROLES: read.token_roles}
            for kind in question.conditions:
                for epoch in range(epochs):
                    for document in drawn_documents(question, kind, epoch):
                        kept.setdefault(_name(document), similarities(read, document).half())
            save_file(kept, self._file(question))
            if number % 20 == 0 or number == len(questions):
                progress(f"tokens for {number:,} of {len(questions):,} questions")

    def scores(self, ranker: Ranker, kind: str) -> GroupScores:
        """Let a ranker score each epoch's documents of a kind."""

        def scores(questions: Sequence[AskedQuestion], epoch: int, rng: Random) -> Tensor:
            return torch.stack([of_question(question, epoch) for question in questions])

        def of_question(question: AskedQuestion, epoch: int) -> Tensor:
            kept, documents = load_file(self._file(question)), drawn_documents(question, kind, epoch)
            last, aggregator = Features(kept[_LAST], kept[_ROLES]), ranker.aggregator
            if isinstance(aggregator, Cedr):
                simmats = [kept[_name(document)] for document in documents]
                return similarity_scores(aggregator, simmats, last, documents)
            read, mask = arranged(last, documents)
            found: Tensor = aggregator(read_last(ranker, read), mask)
            return found

        return scores

    def _file(self, question: AskedQuestion) -> Path:
        return self._folder / f"{question.query_id}.safetensors"


def by_tokens(rankers: Mapping[str, Ranker], features: PairFeatures) -> Scoring:
    """Let rankers score documents from token vectors of all layers, computed once for all rankers."""

    def scoring(question: AskedQuestion) -> Callable[[Sequence[Arrangement]], Mapping[str, Tensor]]:
        read = features(question)
        last = Features(read.vectors[:, :, -1], read.roles)
        projected = {
            name: read_last(ranker, last)
            for name, ranker in rankers.items()
            if not isinstance(ranker.aggregator, Cedr)
        }
        known: dict[tuple[str, Arrangement], Tensor] = {}

        def add(document: Arrangement) -> None:
            wanted = [name for name in rankers if (name, _heeded(rankers[name], document)) not in known]
            simmat = None
            for name in wanted:
                aggregator = rankers[name].aggregator
                if isinstance(aggregator, Cedr):
                    simmat = similarities(read, document) if simmat is None else simmat
                    found = similarity_scores(aggregator, [simmat], last, [document])
                else:
                    found = aggregator(*arranged(projected[name], [document]))
                known[name, _heeded(rankers[name], document)] = found[0]

        def scores(documents: Sequence[Arrangement]) -> dict[str, Tensor]:
            for document in documents:
                add(document)
            return {
                name: torch.stack([known[name, _heeded(ranker, document)] for document in documents])
                for name, ranker in rankers.items()
            }

        return scores

    return scoring


def _heeded(ranker: Ranker, document: Arrangement) -> Arrangement:
    """Give the part of a document's order that its score depends on: the first passage, or all for PACRR."""
    if ranker.spec.family == "cedr-pacrr":
        return document
    return (document[0], *sorted(document[1:]))


def _name(document: Arrangement) -> str:
    return ",".join(map(str, document))
