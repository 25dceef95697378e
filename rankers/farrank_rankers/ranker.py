"""A ranker whole: reader, encoder and aggregator, and the plain way to score with them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import nn

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.registry import AGGREGATORS, ENCODERS
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec, content_version
from farrank_rankers.tokens import Chunk, EncoderInput, collate


def weights_digest(weights: nn.Module) -> str:
    """Hash names, types, shapes and values of a module's tensors to 32 hexadecimal digits.

    Values in half precision count as what they are in fp32, in which models are saved.
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

    `tokens_cut` counts the document's tokens that no chunk could hold.
    """

    score: float
    chunk_scores: tuple[float, ...]
    chunks: tuple[Chunk, ...]
    deciding: int
    tokens_cut: int


class Ranker(nn.Module):
    """A family's modules around one backbone, untrained until weights are loaded.

    `config` is the backbone's parsed config.json.
    """

    def __init__(self, reader: Reader, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.reader = reader
        self.config = config
        self.encoder: Encoder = ENCODERS[reader.spec.family](reader.spec, config)
        self.aggregator: Aggregator = AGGREGATORS[reader.spec.family](reader.spec, config)

    @property
    def spec(self) -> RankerSpec:
        """The reader's spec, which is the ranker's."""
        return self.reader.spec

    @cached_property
    def weights_digest(self) -> str:
        """Hash of the weights, taken when first asked for: training on does not change it.

        A ranker that is opened in half precision has that of its files.
        """
        return weights_digest(self)

    @cached_property
    def version(self) -> str:
        """Hash of spec, tokenizer and weights, taken when first asked for: training on does not change it."""
        return content_version(self.spec, self.reader.tokenizer.files, self.config, self.weights_digest)

    def score(self, query: str, documents: Sequence[str], batch_size: int = 16) -> list[DocumentScore]:
        """Score documents offline, in their order, nothing grouped by length: the reference for all else.

        Raises: ValueError if the query holds no token.
        """
        reader = self.reader
        read_query = reader.read_query(query)
        if not len(read_query):
            raise ValueError("query holds no token; it needs at least 1")
        dual = self.spec.plan == "dual"
        texts = [reader.read_document(text) for text in documents]
        split = [reader.split(text) for text in texts]
        inputs = [
            reader.chunk_input(None if dual else read_query, chunk) for chunks in split for chunk in chunks
        ]
        with torch.inference_mode(), _evaluating(self):
            query_features = stacked(self._encode([reader.query_input(read_query)], 1)) if dual else None
            features = iter(self._encode(inputs, batch_size))  # P × (…)
            return [
                self._document_score(
                    list(islice(features, len(chunks))), chunks, text.tokens_cut, query_features
                )
                for chunks, text in zip(split, texts, strict=True)
            ]

    def _encode(self, inputs: Sequence[EncoderInput], batch_size: int) -> list[Features]:
        """Encode inputs in their order, fp32 (…) each."""
        device = next(self.encoder.parameters()).device
        features: list[Features] = []
        for start in range(0, len(inputs), batch_size):
            batch = collate(inputs[start : start + batch_size], self.reader.pad_id)
            encoded: Features = self.encoder(*(torch.from_numpy(array).to(device) for array in batch))
            features += encoded._replace(vectors=encoded.vectors.float()).rows()
        return features

    def _document_score(
        self,
        features: list[Features],
        chunks: tuple[Chunk, ...],
        tokens_cut: int,
        query: Features | None,
    ) -> DocumentScore:
        """Aggregate one document alone. Shapes: features C × (…), query (1, …)."""
        result = self.aggregator(*batched([stacked(features)]), query)
        return DocumentScore(
            score=float(result.scores[0]),
            chunk_scores=tuple(result.chunk_scores[0].tolist()),
            chunks=chunks,
            deciding=int(result.chunk_scores[0].argmax()),
            tokens_cut=tokens_cut,
        )


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Switch dropout off for a while."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
