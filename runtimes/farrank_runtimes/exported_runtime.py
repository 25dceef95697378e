"""An exported ranker's two graphs as a runtime, whatever library has loaded them."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_runtimes.interface import Capabilities, Int64Array
from farrank_runtimes.warm_up import measure_speed


class LoadedGraph(Protocol):
    """Whatever runs a graph: one session, or one of several."""

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph; outputs come in its order. Raises: OutOfMemory, DeviceLost."""
        ...


class ExportedRuntime:
    """A ranker as two loaded graphs. `longest_input` is the reader's, in tokens."""

    def __init__(
        self, encoder: LoadedGraph, aggregator: LoadedGraph, capabilities: Capabilities, longest_input: int
    ) -> None:
        self._encoder = encoder
        self._aggregator = aggregator
        self._capabilities = capabilities
        self._longest_input = longest_input

    def encode(self, input_ids: Int64Array, roles: Int64Array, token_type_ids: Int64Array) -> Features:
        """Shapes: (P, L) each -> features (P, …) in fp32. Raises: OutOfMemory, DeviceLost."""
        outputs = self._encoder.run(
            {
                "input_ids": torch.from_numpy(input_ids),
                "roles": torch.from_numpy(roles),
                "token_type_ids": torch.from_numpy(token_type_ids),
            }
        )
        return Features(outputs[0].float(), outputs[1] if len(outputs) > 1 else None)

    def aggregate(
        self, features: Features, chunk_mask: Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C)."""
        inputs = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
        if query is not None:
            inputs |= {"query_vectors": query.vectors, "query_roles": query.roles}
        scores, chunk_scores = self._aggregator.run(
            {name: tensor for name, tensor in inputs.items() if tensor is not None}
        )
        return scores.tolist(), chunk_scores.tolist()

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        return measure_speed(self.encode, self._longest_input, self._capabilities.max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return self._capabilities
