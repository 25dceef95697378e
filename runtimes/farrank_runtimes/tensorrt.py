"""What ONNX Runtime's TensorRT provider is told: precision, optimisation profiles, where engines are kept.

Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from farrank_runtimes.interface import Precision
from farrank_runtimes.providers import NAMES, Configured

ENGINES = "engines"

# An engine holds a copy of the weights for each group of lengths, and takes a minute to build.
MOST_GROUPS = 4
SHORTEST_LIMIT = 64


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """Inputs of `shortest` to `longest` tokens, at most `rows` of them in a batch."""

    shortest: int
    longest: int
    rows: int
    usual_rows: int

    @property
    def name(self) -> str:
        """Name the folder of the group's engine: engines are called after the graph, which groups share."""
        return f"{self.shortest}-{self.longest}x{self.rows}"

    def shapes(self, inputs: Iterable[str]) -> dict[str, str]:
        """Write the optimisation profile of an encoder in the provider's options."""
        shapes = {
            "min": (1, self.shortest),
            "opt": (self.usual_rows, self.longest),
            "max": (self.rows, self.longest),
        }
        names = list(inputs)
        return {
            f"trt_profile_{kind}_shapes": ",".join(f"{name}:{rows}x{length}" for name in names)
            for kind, (rows, length) in shapes.items()
        }


def length_groups(longest_input: int, max_batch_tokens: int) -> tuple[LengthGroup, ...]:
    """Divide the lengths of inputs into groups, each half as long as the next; the shortest first.

    A profile is a box, from 1 × shortest to rows × longest, and an engine takes the memory of its far
    corner. One box for all lengths would be sized for as many of the longest inputs as a batch may have of
    the shortest. Within a group no length is twice another, so a box is twice the batcher's budget. The first
    group takes what is shorter, too; batches of more rows than its box has are run in pieces.
    """
    groups: list[LengthGroup] = []
    longest = longest_input
    while True:
        shorter = longest // 2
        last = shorter < SHORTEST_LIMIT or len(groups) == MOST_GROUPS - 1
        groups.append(
            LengthGroup(
                shortest=1 if last else shorter + 1,
                longest=longest,
                rows=max(1, max_batch_tokens // (shorter + 1)),
                usual_rows=max(1, max_batch_tokens // longest),
            )
        )
        if last:
            return tuple(reversed(groups))
        longest = shorter


def group_for(groups: Sequence[LengthGroup], length: int) -> LengthGroup:
    """Find the group of an input.

    Raises: ValueError if it is longer than any that the groups were made for.
    """
    for group in groups:
        if length <= group.longest:
            return group
    raise ValueError(f"an input has {length} tokens; the engines were built for at most {groups[-1].longest}")


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What an engine depends on and the provider does not compare when it finds one in its cache."""

    graph: str  # the file's SHA-256
    precision: Precision
    gpu: str
    compute_capability: str
    onnxruntime: str
    tensorrt: str

    def folder(self) -> str:
        """Name the folder for engines of this key."""
        digest = hashlib.blake2b(json.dumps(asdict(self)).encode(), digest_size=8).hexdigest()
        return f"sm{self.compute_capability}-tensorrt-{self.tensorrt}-{digest}"


def tensorrt_options(
    group: LengthGroup,
    inputs: Iterable[str],
    *,
    precision: Precision,
    device_index: int,
    engines: Path | None,
) -> Configured:
    """Options of the TensorRT provider for a session that serves one group of lengths.

    `engines` is the folder of the group's engine, beside which all groups share a timing cache; None keeps
    neither.
    """
    options: dict[str, str] = {
        "device_id": str(device_index),
        "trt_fp16_enable": str(precision == "fp16"),
        "trt_bf16_enable": str(precision == "bf16"),
        "trt_int8_enable": str(precision == "int8"),
        **group.shapes(inputs),
    }
    if engines is not None:
        options |= {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(engines),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(engines.parent),
        }
    return NAMES["tensorrt"], options
