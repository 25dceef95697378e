"""What the device at hand can do at most: its own matrix product in bf16, and its own copy."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from farrank_bench.gpu.clock import seconds_of

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations/s of a large square matrix product in bf16, bytes/s of a copy, run by run.

    A copy's bytes count twice, once read and once written. `side` is the matrices', `nbytes` what is copied.
    """

    flops_per_s: Sequence[float]
    bytes_per_s: Sequence[float]
    side: int
    nbytes: int


def measure_ceilings(device: torch.device, side: int, nbytes: int, times: int, repeats: int) -> Ceilings:
    """Multiply and copy `times` times in each run, behind one run that is not counted."""
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def multiply() -> None:
        for _ in range(times):
            torch.mm(left, right, out=product)

    def copy() -> None:
        for _ in range(times):
            target.copy_(source)

    multiplied_s = [seconds_of(multiply, device) for _ in range(repeats + 1)][1:]
    copied_s = [seconds_of(copy, device) for _ in range(repeats + 1)][1:]
    return Ceilings(
        [times * 2 * side**3 / seconds for seconds in multiplied_s],
        [times * 2 * nbytes / seconds for seconds in copied_s],
        side,
        nbytes,
    )
