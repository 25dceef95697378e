"""A complete ranker: reader, encoder and aggregator, for training and offline scoring."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregator, Explanation
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.classes import aggregator_class, encoder_class
from farrank_rankers.family import family_named
from farrank_rankers.features import Features, by_document, ends, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec, content_version, encodings_version
from farrank_rankers.tokens import Chunk, EncoderInput, collate


def weights_digest(weights: nn.Module) -> str:
    """Hash names, types, shapes and values of a module's tensors to 32 hexadecimal digits.

    Values in half precision are hashed as fp32, in which models are saved.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.state_dict().items()):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class DocumentScore:
    """A document's score and its evidence: a chunk score for each chunk, `deciding` the highest one's index.

    `characters_cut` counts the document's characters beyond the chunks; `tokens_cut` counts its tokens there,
    None if they were not counted.
    """

    score: float
    chunk_scores: tuple[float, ...]
    chunks: tuple[Chunk, ...]
    deciding: int
    characters_cut: int
    tokens_cut: int | None


class Ranker(nn.Module):
    """A family's modules around one backbone, untrained until weights are loaded.

    `config` is the backbone's parsed config.json.
    """

    def __init__(self, reader: Reader, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.reader = reader
        self.backbone_config = config
        family = family_named(reader.spec.family)
        self.encoder: Encoder = encoder_class(family)(reader.spec, config)
        self.aggregator: Aggregator[Any] = aggregator_class(family)(reader.spec, config)
        # The weights' digest, with each tensor's identity and change counter at that time.
        self._digest: tuple[list[tuple[int, int]], str] | None = None

    @property
    def spec(self) -> RankerSpec:
        """The reader's spec, which is the ranker's."""
        return self.reader.spec

    @property
    def weights_digest(self) -> str:
        """The hash of the current weights; training changes it.

        A ranker that was opened in half precision has the hash of its files. The hash is cached until the
        ranker is trained (`train()`) or a tensor is changed in place.
        """
        tensors = chain(self.parameters(), self.buffers())
        changes = [(id(each), 0 if each.is_inference() else each._version) for each in tensors]
        # A fused optimizer does not increase the change counter, so the hash is not cached in training.
        if self._digest is None or self.training or self._digest[0] != changes:
            self._digest = changes, weights_digest(self)
        return self._digest[1]

    @property
    def version(self) -> str:
        """The hash of spec, tokenizer and current weights."""
        return content_version(
            self.spec, self.reader.tokenizer.files, self.backbone_config, self.weights_digest
        )

    @property
    def encodings_version(self) -> str:
        """The version without the limit on a document's tokens."""
        return encodings_version(
            self.spec, self.reader.tokenizer.files, self.backbone_config, self.weights_digest
        )

    def train(self, mode: bool = True) -> Self:
        """Switch dropout on or off, like every module."""
        if mode or self.training:
            self._digest = None
        return super().train(mode)

    def forward(
        self,
        batch: Sequence[Tensor],
        counts: Sequence[int],
        query: Sequence[Tensor] | None = None,
        *,
        crossed: bool = False,
    ) -> Tensor:
        """Score documents, differentiably.

        `batch` holds the encoder inputs of all documents, one document after the other: input_ids, roles and
        token_type_ids, padded on the right (see `tensors`). `counts` says how many inputs each document has.
        In a dual plan `query` has each document's query in the same form, or one query for all; with
        `crossed` it has any number of queries, and each scores all documents. Under autocast only the encoder
        runs in lower precision.
        Shapes: batch (P, L) each, D counts whose sum is P, query (D or 1, L) each -> (D,); crossed: (B, L)
        each -> (B, D).
        Raises: ValueError if `crossed` is given without queries.
        """
        if crossed:
            return self._cross(batch, counts, query)
        features, chunk_mask, of_query = self._read(batch, counts, query)
        with torch.autocast(chunk_mask.device.type, enabled=False):
            scores: Tensor = self.aggregator(features, chunk_mask, of_query)
        return scores

    def explain(
        self,
        batch: Sequence[Tensor],
        counts: Sequence[int],
        query: Sequence[Tensor] | None = None,
        batch_size: int | None = None,
    ) -> Explanation:
        """Score documents as `forward` does, and their chunks, encoding at most `batch_size` inputs at once.

        Shapes: batch (P, L) each, D counts whose sum is P, query (D or 1, L) each -> (D,), (D, C).
        """
        features, chunk_mask, of_query = self._read(batch, counts, query, batch_size)
        with torch.autocast(chunk_mask.device.type, enabled=False):
            return self.aggregator.explain(features, chunk_mask, of_query)

    def score(
        self,
        query: str,
        documents: Sequence[str],
        batch_size: int = 16,
        *,
        count_tokens: bool = False,
        instruction: str = "",
    ) -> list[DocumentScore]:
        """Score documents offline, in their order; the reference for all runtimes.

        With `count_tokens`, documents are tokenized to their end to count the tokens that were cut. An
        `instruction` replaces the ranker's own.
        Raises: ValueError if the query holds no token; SpecError if the ranker takes no such instruction.
        """
        reader = self.reader.instructed(instruction)
        read_query = reader.read_query(query)
        if not len(read_query):
            raise ValueError("query holds no token; it needs at least 1")
        dual = self.spec.plan == "dual"
        texts = [reader.read_document(text, count_tokens=count_tokens) for text in documents]
        split = [reader.split(text) for text in texts]
        of_query = self.tensors([reader.query_input(read_query)]) if dual else None
        asked = None if dual else read_query
        explained: list[tuple[float, tuple[float, ...]]] = []
        with torch.inference_mode(), _evaluating(self):
            for some in _grouped(split, batch_size):
                inputs = [reader.chunk_input(asked, chunk) for chunks in some for chunk in chunks]
                counts = [len(chunks) for chunks in some]
                scores, chunk_scores = self.explain(self.tensors(inputs), counts, of_query, batch_size)
                for score, each, count in zip(scores.tolist(), chunk_scores.tolist(), counts, strict=True):
                    explained.append((score, tuple(each[:count])))
        return [
            DocumentScore(
                score=score,
                chunk_scores=evidence,
                chunks=chunks,
                deciding=evidence.index(max(evidence)),
                characters_cut=text.characters_cut,
                tokens_cut=text.tokens_cut,
            )
            for (score, evidence), chunks, text in zip(explained, split, texts, strict=True)
        ]

    def tensors(self, inputs: Sequence[EncoderInput]) -> tuple[Tensor, ...]:
        """Pad inputs to one batch on the encoder's device.

        Shapes: -> input_ids, roles, token_type_ids (P, L).
        """
        device = next(self.encoder.parameters()).device
        return tuple(torch.from_numpy(array).to(device) for array in collate(inputs, self.reader.pad_id))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Divide the trainable weights into the backbone's and all others.

        A cross-encoder's head counts as other, late interaction's aggregator as backbone. The papers use a
        learning rate of 1e-5 for the backbone and 1e-4 for the others.
        """
        pretrained: list[nn.Module] = [self.encoder.backbone]
        if self.aggregator.learns_as_backbone:
            pretrained.append(self.aggregator)
        heads = {id(weight) for weight in self.encoder.head_weights()}
        of_backbone = {id(weight) for module in pretrained for weight in module.parameters()} - heads
        groups: dict[str, list[nn.Parameter]] = {"backbone": [], "other": []}
        for weight in self.parameters():
            if weight.requires_grad:
                groups["backbone" if id(weight) in of_backbone else "other"].append(weight)
        return groups

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Mapping[str, Any] | None = None, **_defaults: Any
    ) -> None:
        """Recompute the backbone's layers in the backward pass, to keep less of them in memory.

        Name and parameters are those that transformers' Trainer uses; it always passes all of them.
        """
        keywords = {"use_reentrant": False} | dict(activation_checkpointing_kwargs or {})
        backbone: Any = self.encoder.backbone
        new = getattr(backbone, "activation_checkpointing_enable", None)
        (new or backbone.gradient_checkpointing_enable)(keywords)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Do the same for the Trainer of transformers 4.57, which uses this name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs)

    def _read(
        self,
        batch: Sequence[Tensor],
        counts: Sequence[int],
        query: Sequence[Tensor] | None,
        batch_size: int | None = None,
    ) -> tuple[Features, Tensor, Features | None]:
        """Encode a batch, and return the aggregator's arguments in fp32.

        Shapes: (P, L) each, (D or 1, L) each -> (D, C, …), (D, C), (D, …).
        """
        features, chunk_mask = by_document(self._encode(batch, batch_size), counts)
        if query is None:
            return features, chunk_mask, None
        of_query = self._encode(query, batch_size)
        if len(of_query.vectors) == 1:
            of_query = of_query.repeated(len(counts))
        return features, chunk_mask, of_query

    def _cross(
        self, batch: Sequence[Tensor], counts: Sequence[int], query: Sequence[Tensor] | None
    ) -> Tensor:
        """Score all documents for each query. Shapes: (P, L) each, (B, L) each -> (B, D)."""
        if query is None:
            raise ValueError("query is None; it must hold the queries that score all documents")
        features, chunk_mask, _ = self._read(batch, counts, None)
        queries = [
            Features(each.vectors[None], None if each.roles is None else each.roles[None])
            for each in self._encode(query, None).rows()
        ]
        with torch.autocast(chunk_mask.device.type, enabled=False):
            scores = [self.aggregator(features, chunk_mask, each.repeated(len(counts))) for each in queries]
        return torch.stack(scores)

    def _encode(self, batch: Sequence[Tensor], batch_size: int | None) -> Features:
        """Encode inputs, at most `batch_size` at once. Shapes: (P, L) each -> fp32 (P, …)."""
        if self.training and batch_size is None and batch[0].device.type == "cpu":
            return self._encode_by_length(batch)
        slices = zip(*(torch.split(each, batch_size or len(each)) for each in batch), strict=True)
        parts: list[Features] = [self.encoder(*some) for some in slices]
        vectors = torch.cat([part.vectors.float() for part in parts])
        roles = [part.roles for part in parts if part.roles is not None]
        return Features(vectors, torch.cat(roles) if roles else None)

    def _encode_by_length(self, batch: Sequence[Tensor]) -> Features:
        """Encode inputs in pieces of similar length. Shapes: (P, L) each -> fp32 (P, …)."""
        lengths = ends(batch[1])
        rows: dict[int, Features] = {}
        for piece in pieces(lengths):
            longest = max(lengths[place] for place in piece)
            part: Features = self.encoder(*(each[piece, :longest] for each in batch))
            rows |= zip(piece, Features(part.vectors.float(), part.roles).rows(), strict=True)
        return stacked([rows[place] for place in range(len(lengths))])


# Positions of a piece, enough to keep a few cores busy. Larger pieces have more padding, and memory blocks so
# large that they are returned to the system each time.
_POSITIONS = 1024


def pieces(lengths: Sequence[int]) -> list[list[int]]:
    """Divide inputs among pieces of similar length, longest first; all but the last have enough positions."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if not found or len(found[-1]) * lengths[found[-1][0]] >= _POSITIONS:
            found.append([])
        found[-1].append(place)
    return found


def _grouped(split: Sequence[tuple[Chunk, ...]], batch_size: int) -> Iterator[Sequence[tuple[Chunk, ...]]]:
    """Group whole documents; several in a group have at most `batch_size` chunks together."""
    start = chunks = 0
    for end, document in enumerate(split):
        if end > start and chunks + len(document) > batch_size:
            yield split[start:end]
            start, chunks = end, 0
        chunks += len(document)
    if start < len(split):
        yield split[start:]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Switch dropout off within the block."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
