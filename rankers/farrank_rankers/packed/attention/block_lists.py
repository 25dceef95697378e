"""Blocks as FlexAttention reads them: how many each row has, and which."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.packed.attention.blocks import Flags, Touched


class BlockLists(NamedTuple):
    """Blocks of each row, ascending, on the device; no `wholly` where a mask is asked about every pair.

    Shapes: counts (1, 1, Q), partly, wholly (1, 1, Q, K), int32.
    """

    partly_counts: Tensor
    partly: Tensor
    wholly_counts: Tensor | None
    wholly: Tensor | None

    @classmethod
    def of(cls, touched: Touched, masked: bool, device: torch.device) -> "BlockLists":
        """List blocks, in one upload."""
        kinds = [touched.partly] if masked else [touched.partly, touched.wholly]
        listed = np.stack([_listed(flags) for flags in kinds])  # (1 or 2, Q, 1 + K)
        lists = torch.from_numpy(listed)
        if device.type == "cuda":
            # From pinned memory the copy waits for nothing.
            lists = lists.pin_memory()
        lists = lists.to(device, non_blocking=True)
        halves = [
            (each[None, None, :, 0].contiguous(), each[None, None, :, 1:].contiguous()) for each in lists
        ]
        return cls(*halves[0], *(halves[1] if len(halves) > 1 else (None, None)))


def _listed(flags: Flags) -> NDArray[np.int32]:
    """Write down each row's count, then its blocks. Shapes: (Q, K) -> (Q, 1 + K), Q and K at least 2."""
    # torch compiles anew for dimensions of 1; rows of no block are none.
    rows, columns = (max(2, size) for size in flags.shape)
    listed = np.zeros((rows, 1 + columns), dtype=np.int32)
    row, column = np.nonzero(flags)
    counts = np.bincount(row, minlength=rows)
    listed[:, 0] = counts
    listed[row, 1 + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]] = column
    return listed
