"""An exported ranker as a runtime: its two graphs, whichever library has loaded them."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import Batch, EncoderInput, collate
from farrank_runtimes.document_groups import GroupLimit
from farrank_runtimes.loaded_runtime import LoadedRuntime
from farrank_runtimes.runtime import Capabilities, Encoded
from farrank_runtimes.runtime_table import GraphFiles

# A graph has no loop: all that it computes for a group of documents is in memory at once. Neural Model 1
# makes 380 MB of so many positions, late interaction, 384 wide, 350 MB.
GROUP_LIMIT = GroupLimit(feature_bytes=2**26, positions=2**13)

# Runs a loaded graph on its inputs by name; outputs come in its order. Raises: OutOfMemory, DeviceLost.
RunGraph = Callable[[Mapping[str, Tensor]], list[Tensor]]


class ExportedRuntime(LoadedRuntime):
    """A ranker as the two graphs of its export."""

    def __init__(
        self, run_encoder: RunGraph, run_aggregator: RunGraph, capabilities: Capabilities, files: GraphFiles
    ) -> None:
        pad = partial(
            collate, pad_id=files.pad_id, step=capabilities.length_step, at_most=files.longest_input
        )
        encode, aggregate = partial(_encode, run_encoder, pad), partial(_aggregate, run_aggregator)
        super().__init__(encode, aggregate, capabilities, files.longest_input, GROUP_LIMIT)


def _encode(
    run: RunGraph, pad: Callable[[Sequence[EncoderInput]], Batch], inputs: Sequence[EncoderInput]
) -> Encoded:
    batch = pad(inputs)
    started_s = time.perf_counter()
    named = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}  # (P, L) each
    vectors, *roles = run(named)  # (P, …), of tokens (P, S)
    features = Features(vectors.float(), roles[0] if roles else None)
    return Encoded(features.rows(), time.perf_counter() - started_s)


def _aggregate(
    run: RunGraph, features: Features, chunk_mask: Tensor, query: Features | None
) -> tuple[list[float], list[list[float]]]:
    """Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
    inputs = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
    if query is not None:
        inputs |= {"query_vectors": query.vectors, "query_roles": query.roles}
    scores, chunk_scores = run({name: tensor for name, tensor in inputs.items() if tensor is not None})
    return scores.tolist(), chunk_scores.tolist()


def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Put the outputs of a batch's parts together. Shapes: (P1, …), (P2, …), … each -> (P, …) each."""
    return [torch.cat(outputs) if len(outputs) > 1 else outputs[0] for outputs in zip(*parts, strict=True)]
