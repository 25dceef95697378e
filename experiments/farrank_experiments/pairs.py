"""Encoder features of pairs of question and passage, and scores of documents composed of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from farrank_experiments.questions import Arrangement, AskedQuestion
from farrank_exporters.parity import encode_all
from farrank_exporters.trace import trace_ranker
from farrank_rankers.aggregate import Aggregator
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Chunk, EncoderInput
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.openvino_runtime import computes_bf16, open_graphs
from farrank_runtimes.runtime import Placement

# Pairs that are encoded at once.
_AT_ONCE = 32
# Documents whose token vectors are batched at once: one document of eight chunks takes 14 MB in six layers.
_DOCUMENTS_OF_TOKENS = 4

# A question -> features of its pool's passages, (P, …).
PairFeatures = Callable[[AskedQuestion], Features]


def encoded_by(ranker: Ranker, *, lower_precision: bool) -> PairFeatures:
    """Let a ranker's encoder read each pair of a question and a passage of its pool, without gradients.

    In lower precision the encoder computes in bf16, as in training; the features are in fp32.
    """
    device = next(ranker.parameters()).device
    ranker.eval()

    def features(question: AskedQuestion) -> Features:
        inputs = _inputs(ranker, question)
        lower = torch.autocast(device.type, torch.bfloat16) if lower_precision else nullcontext()
        with torch.inference_mode(), lower:
            batches = zip(*(torch.split(each, _AT_ONCE) for each in ranker.tensors(inputs)), strict=True)
            parts: list[Features] = [ranker.encoder(*batch) for batch in batches]
        roles = [part.roles for part in parts if part.roles is not None]
        vectors = torch.cat([part.vectors.float() for part in parts])
        return Features(vectors, torch.cat(roles) if roles else None)

    return features


def vectors_by(ranker: Ranker, folder: Path, *, lower_precision: bool) -> PairFeatures:
    """Let a ranker's encoder read pairs like `encoded_by`; it gives one vector for each pair.

    In lower precision OpenVINO computes if the processor has bf16, nearly twice as fast as torch. Its graphs
    are written to the folder.
    """
    if not lower_precision or next(ranker.parameters()).is_cuda or not computes_bf16():
        return encoded_by(ranker, lower_precision=lower_precision)
    trace_ranker(ranker, folder)
    encoder, aggregator = folder / "encoder.onnx", folder / "aggregator.onnx"
    reader = ranker.reader
    files = GraphFiles(encoder, aggregator, "bf16", reader.max_input_tokens, reader.pad_id)
    runtime = open_graphs(files, Placement(device="cpu"))
    return lambda question: stacked(encode_all(runtime, _inputs(ranker, question)))


def _inputs(ranker: Ranker, question: AskedQuestion) -> list[EncoderInput]:
    query = ranker.reader.read_query(question.text)
    return [ranker.reader.chunk_input(query, _chunk(tokens)) for tokens in question.pool]


def _chunk(tokens: np.ndarray) -> Chunk:
    return Chunk(index=0, ids=tokens, start=0, end=0)


def arranged(features: Features, documents: Sequence[Arrangement]) -> tuple[Features, Tensor]:
    """Compose documents from the features of passages. Shapes: (P, …) -> (D, C, …), mask (D, C)."""
    rows = [torch.tensor(each, device=features.vectors.device) for each in documents]
    roles = features.roles
    return batched([Features(features.vectors[row], None if roles is None else roles[row]) for row in rows])


def scores_of(aggregator: Aggregator[Any], features: Features, documents: Sequence[Arrangement]) -> Tensor:
    """Score documents composed from the features of passages. Shapes: (P, …) -> (D,)."""
    at_once = len(documents) if features.roles is None else _DOCUMENTS_OF_TOKENS
    with torch.inference_mode():
        return torch.cat(
            [
                aggregator(*arranged(features, documents[start : start + at_once]))
                for start in range(0, len(documents), at_once)
            ]
        )


class KeptVectors:
    """One vector for each pair of a question and a passage, read from a file, by names of question sets.

    Questions and their pools are in the order in which they were written.
    """

    def __init__(self, path: Path) -> None:
        with safe_open(path, "pt") as file:
            self._vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def of(self, name: str, questions: Sequence[AskedQuestion]) -> PairFeatures:
        """Give the stored vectors of a question set, in place of an encoder."""
        vectors, sizes = self._vectors[name], [len(question.pool) for question in questions]
        if sum(sizes) != len(vectors):
            raise ValueError(f"{name}: {len(vectors)} vectors for {sum(sizes)} pairs")
        rows = dict(zip((each.query_id for each in questions), vectors.split(sizes), strict=True))
        return lambda question: Features(rows[question.query_id])


def write_vectors(
    path: Path,
    features: PairFeatures,
    questions: Mapping[str, Sequence[AskedQuestion]],
    progress: Callable[[str], None],
) -> None:
    """Encode the pairs of all questions, and write their vectors."""
    kept = {}
    for name, asked in questions.items():
        found = []
        for number, question in enumerate(asked, start=1):
            found.append(features(question).vectors)
            if number % 50 == 0 or number == len(asked):
                progress(f"{name}: vectors for {number:,} of {len(asked):,} questions")
        kept[name] = torch.cat(found)
    save_file(kept, path)
