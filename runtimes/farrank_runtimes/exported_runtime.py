"""The runtime of an exported ranker's two graphs, for every library."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderBatch, EncoderInput, collate
from farrank_runtimes.batcher import in_two
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.document_groups import GroupLimit
from farrank_runtimes.graph_files import BeginGraph, BegunGraph, EncoderGraph, GraphFiles, RunGraph
from farrank_runtimes.loaded_runtime import Encode, LoadedRuntime
from farrank_runtimes.runtime import CompletedBatch

# A graph has no loop: all its values for a group of documents are in memory at once. For this number of
# positions, Neural Model 1 needs 380 MB, and late interaction of width 384 needs 350 MB.
GROUP_LIMIT = GroupLimit(feature_bytes=2**26, positions=2**13)


class ExportedRuntime(LoadedRuntime):
    """A ranker as the two graphs of its export."""

    def __init__(self, encoder: EncoderGraph, run_aggregator: RunGraph, files: GraphFiles) -> None:
        capabilities = encoder.capabilities
        pad = partial(
            collate, pad_id=files.pad_id, step=capabilities.length_step, at_most=files.longest_input
        )
        encode: Encode = partial(_encode, encoder.run, pad)
        if encoder.begin is not None:
            encode = partial(_begin, encoder.begin, pad, capabilities.length_step)
        super().__init__(
            encode,
            partial(_aggregate, run_aggregator),
            capabilities,
            files.longest_input,
            GROUP_LIMIT,
            files.similarity,
            files.maxsim,
        )


Pad = Callable[[Sequence[EncoderInput]], EncoderBatch]


def _encode(run: RunGraph, pad: Pad, inputs: Sequence[EncoderInput]) -> CompletedBatch:
    batch = pad(inputs)
    started_s = time.perf_counter()
    features = _features(run(_named(batch)))
    return CompletedBatch(features.rows(), time.perf_counter() - started_s)


def _begin(begin: BeginGraph, pad: Pad, step: int, inputs: Sequence[EncoderInput]) -> "EncodingInParts":
    if not inputs:
        raise ValueError("inputs is empty; a batch needs at least 1")
    parts = in_two([each.tokens for each in inputs], step)
    begun = begin([_named(pad([inputs[place] for place in part])) for part in parts])
    return EncodingInParts(begun, parts)


@dataclass(frozen=True, slots=True, eq=False)
class EncodingInParts:
    """A batch whose parts are in flight; each part has the indices of its inputs in the batch."""

    begun: BegunGraph
    parts: Sequence[Sequence[int]]

    def rows(self) -> list[Features]:
        """Wait until all parts are done; return each input's features, in the order of the batch."""
        with device_failures():
            found: dict[int, Features] = {}
            for places, outputs in zip(self.parts, self.begun.outputs(), strict=True):
                found |= zip(places, _features(outputs).rows(), strict=True)
            return [found[place] for place in range(len(found))]

    def device_s(self) -> float:
        """Return the time that the device was busy with it."""
        return self.begun.device_s()


def _named(batch: EncoderBatch) -> dict[str, Tensor]:
    """Shapes: (P, L) each."""
    return {name: torch.from_numpy(array) for name, array in batch._asdict().items()}


def _features(outputs: Sequence[Tensor]) -> Features:
    """Shapes: vectors (P, …) [, roles (P, S)]."""
    vectors, *roles = outputs
    return Features(vectors.float(), roles[0] if roles else None)


def _aggregate(
    run: RunGraph, features: Features, chunk_mask: Tensor, query: Features | None
) -> tuple[list[float], list[list[float]]]:
    """Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
    inputs = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
    if query is not None:
        inputs |= {"query_vectors": query.vectors, "query_roles": query.roles}
    scores, chunk_scores = run({name: tensor for name, tensor in inputs.items() if tensor is not None})
    return scores.tolist(), chunk_scores.tolist()
