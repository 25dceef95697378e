"""An exported ranker as a runtime: its two graphs, whichever library has loaded them."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput, collate
from farrank_runtimes.devices import free_memory
from farrank_runtimes.document_groups import GroupLimit, score_in_groups
from farrank_runtimes.runtime import Capabilities, DocumentScores, Encoded, closed
from farrank_runtimes.warm_up import measure_speed

# A graph has no loop: all that it computes for a group of documents is in memory at once. Neural Model 1
# makes 380 MB of so many positions, late interaction, 384 wide, 350 MB.
GROUP_LIMIT = GroupLimit(feature_bytes=2**26, positions=2**13)


# Runs a loaded graph on its inputs by name; outputs come in its order. Raises: OutOfMemory, DeviceLost.
RunGraph = Callable[[Mapping[str, Tensor]], list[Tensor]]


def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Put the outputs of a batch's parts together. Shapes: (P1, …), (P2, …), … each -> (P, …) each."""
    return [torch.cat(outputs) if len(outputs) > 1 else outputs[0] for outputs in zip(*parts, strict=True)]


class ExportedRuntime:
    """A ranker as the two graphs of its export. `longest_input`, in tokens, and `pad_id` are the reader's."""

    def __init__(
        self,
        run_encoder: RunGraph,
        run_aggregator: RunGraph,
        capabilities: Capabilities,
        longest_input: int,
        pad_id: int = 0,
    ) -> None:
        self._run_encoder = run_encoder
        self._run_aggregator = run_aggregator
        self._capabilities = capabilities
        self._device = torch.device(capabilities.device)
        self._longest_input = longest_input
        self._pad_id = pad_id

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoded:
        """Run the heavy part. Raises: OutOfMemory, DeviceLost."""
        batch = collate(inputs, self._pad_id)
        started_s = time.perf_counter()
        named = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}  # (P, L) each
        vectors, *roles = self._run_encoder(named)  # (P, …), of tokens (P, S)
        features = Features(vectors.float(), roles[0] if roles else None)
        return Encoded(features.rows(), time.perf_counter() - started_s)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Run the light part. Raises: OutOfMemory if a document alone does not fit; DeviceLost."""
        return score_in_groups(self._aggregate, documents, queries, device=self._device, limit=GROUP_LIMIT)

    def _aggregate(
        self, features: Features, chunk_mask: Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
        inputs = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
        if query is not None:
            inputs |= {"query_vectors": query.vectors, "query_roles": query.roles}
        given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        scores, chunk_scores = self._run_aggregator(given)
        return scores.tolist(), chunk_scores.tolist()

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        return measure_speed(self.encode, self._longest_input, self._capabilities.max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return self._capabilities

    def close(self) -> None:
        """Free the graphs."""
        self._run_encoder = self._run_aggregator = closed
        free_memory(self._device)
