"""Batches in two halves side by side, for a CPU's threads."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from farrank_runtimes.exported_runtime import LoadedGraph


class GraphInStreams(Protocol):
    """A graph that runs several batches at once."""

    def run_beside(self, parts: Sequence[Mapping[str, Tensor]]) -> list[list[Tensor]]:
        """Run each batch; outputs come in the graph's order. Raises: OutOfMemory, DeviceLost."""
        ...


class HalvedEncoder:
    """An encoder whose batches run in two halves, each on half of the threads.

    Threads that share a batch wait for each other at every layer, for whichever the machine has just held up;
    halves wait once. A row that is left over, as the only one of a small call, has all threads to itself.
    """

    def __init__(self, whole: LoadedGraph, halves: GraphInStreams) -> None:
        self._whole = whole
        self._halves = halves

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run a batch, one half beside the other. Shapes: (P, L) each -> (P, …) each.

        Raises: OutOfMemory, DeviceLost.
        """
        rows = len(next(iter(inputs.values())))
        half = rows // 2
        parts = []
        if half:
            parts = self._halves.run_beside(
                [{name: each[start : start + half] for name, each in inputs.items()} for start in (0, half)]
            )
        if rows % 2:
            parts.append(self._whole.run({name: each[2 * half :] for name, each in inputs.items()}))
        return [
            torch.cat(outputs) if len(outputs) > 1 else outputs[0] for outputs in zip(*parts, strict=True)
        ]
