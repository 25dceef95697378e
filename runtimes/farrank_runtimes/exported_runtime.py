"""An exported ranker's two graphs as a runtime, whatever library has loaded them."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput, collate
from farrank_runtimes.runtime import Capabilities, Encoded
from farrank_runtimes.warm_up import measure_speed

# What one run of an aggregator reads. A graph has no loop: of everything it computes, all documents of a run
# stand in memory at once. Neural Model 1 makes 380 MB of so many positions, late interaction, 384 wide, 350.
FEATURE_BYTES = 2**26
POSITIONS = 2**13


class LoadedGraph(Protocol):
    """Whatever runs a graph: one session, or one of several."""

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph; outputs come in its order. Raises: OutOfMemory, DeviceLost."""
        ...


class ExportedRuntime:
    """A ranker as two loaded graphs. `longest_input`, in tokens, and `pad_id` are the reader's."""

    def __init__(
        self,
        encoder: LoadedGraph,
        aggregator: LoadedGraph,
        capabilities: Capabilities,
        longest_input: int,
        pad_id: int = 0,
    ) -> None:
        self._encoder = encoder
        self._aggregator = aggregator
        self._capabilities = capabilities
        self._longest_input = longest_input
        self._pad_id = pad_id

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoded:
        """Run the heavy part. Raises: OutOfMemory, DeviceLost."""
        batch = collate(inputs, self._pad_id)
        started_s = time.perf_counter()
        named = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}  # (P, L) each
        vectors, *roles = self._encoder.run(named)  # (P, …), of tokens (P, S)
        features = Features(vectors.float(), roles[0] if roles else None)
        return Encoded(features.rows(), time.perf_counter() - started_s)

    def aggregate(
        self, features: Features, chunk_mask: Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        """Score documents, as many in one run as are affordable: one alone, and all whose vectors are few.

        Shapes: (D, C, …), (D, C), (D, …) -> scores (D,), chunk scores (D, C).
        """
        inputs = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
        if query is not None:
            inputs |= {"query_vectors": query.vectors, "query_roles": query.roles}
        given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        documents = len(chunk_mask)
        if documents == 1 or documents <= (together := affordable_documents(features, query)):
            scores, chunk_scores = self._aggregator.run(given)
            return scores.tolist(), chunk_scores.tolist()
        runs = [
            self._aggregator.run({name: each[start : start + together] for name, each in given.items()})
            for start in range(0, documents, together)
        ]
        scores, chunk_scores = (torch.cat(parts) for parts in zip(*runs, strict=True))
        return scores.tolist(), chunk_scores.tolist()

    def warm_up(self) -> float:
        """Run batches of the shapes to come; return the measured speed in tokens per second."""
        return measure_speed(self.encode, self._longest_input, self._capabilities.max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """What runs where."""
        return self._capabilities


def affordable_documents(features: Features, query: Features | None) -> int:
    """Say how many documents one run of an aggregator may read, of those that are padded alike; 1 at least.

    Of tokens, positions are those of the chunks, and those of the query beside each. Of whole chunks they are
    the chunks, which evidence may read once more for each that it leaves out.
    Shapes: features (D, C, …), query (D, …).
    """
    documents, chunks = features.vectors.shape[:2]
    beside = 1 + chunks
    if features.roles is not None:
        asked = 0 if query is None or query.roles is None else query.roles.shape[1]
        beside = max(beside, features.roles.shape[2] + asked)
    by_bytes = FEATURE_BYTES * documents // max(1, features.vectors.nbytes)
    return max(1, min(by_bytes, POSITIONS // (chunks * beside)))
