"""Where packed tokens stand on their way to the device: pinned memory, from which copies need no host."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from farrank_rankers.packed.packing import Packing

# 128 bytes of int32: every row begins where a warp's reads do, and where compiled kernels expect it.
ALIGNED = 32


class Ended(Protocol):
    """What tells of a batch's end, such as a CUDA event."""

    def synchronize(self) -> None:
        """Wait for it."""
        ...


class Stage:
    """Room for one batch, on the host and again on the device, which grows with the largest one.

    `last` is the end of the batch that had it last: before, neither half may be written.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = torch.empty(0, dtype=torch.int32)
        self._there = torch.empty(0, dtype=torch.int32, device=device)
        self.last: Ended | None = None

    def upload(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """Begin one copy of all that the device needs, on the current stream; give views of it there.

        Shapes: -> tokens (5, T), offsets (P + 1,), int32.
        """
        rows, count = packing.tokens.shape
        width, offsets = _aligned(count), len(packing.offsets)
        start = _aligned(offsets)
        size = start + rows * width
        self._grow(size)
        host = self._host.numpy()
        host[:offsets] = packing.offsets
        host[start:size].reshape(rows, width)[:, :count] = packing.tokens
        there = self._there[:size]
        there.copy_(self._host[:size], non_blocking=True)
        return there[start:].view(rows, width)[:, :count], there[:offsets]

    def _grow(self, size: int) -> None:
        if size <= len(self._host):
            return
        room = 1 << (size - 1).bit_length()  # by doubling: pinning memory takes milliseconds
        # Both or neither: memory may end between the two.
        self._host, self._there = (
            torch.empty(room, dtype=torch.int32, pin_memory=self._device.type == "cuda"),
            torch.empty(room, dtype=torch.int32, device=self._device),
        )


class StagingRing:
    """A stage for each batch in flight: one that runs, and one that is being brought."""

    def __init__(self, device: torch.device, count: int = 2) -> None:
        self._stages: Sequence[Stage] = [Stage(device) for _ in range(count)]
        self._turn = 0

    def free(self) -> Stage:
        """Give the stage whose batch was begun first, waiting for that batch's end."""
        stage = self._stages[self._turn]
        if stage.last is not None:
            stage.last.synchronize()
            stage.last = None
        self._turn = (self._turn + 1) % len(self._stages)
        return stage


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED
