"""Advice that makes rankers faster on a machine; every figure is from docs/benchmarks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from farrank_runtimes.installed import FoundKernel, FoundRuntime, Gpus
from farrank_runtimes.machine import Processor

# The packages of `farrank[export]` besides the runtimes.
_EXPORTING = ("onnx", "onnxscript", "nncf")


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured result, with the numbers of `report`, a page of docs/benchmarks.

    `needs` are the instructions of the measured processor on which the result depends.
    """

    said: str
    report: str
    needs: tuple[str, ...] = ()


INT8 = Figure(
    "a server of all-MiniLM-L6-v2 in int8 scored 5.76 times the documents/s of sentence-transformers in "
    "torch fp32, on two AMD cores",
    "2026-11-22-amd-cpu-2-cores.md",
    ("avx512_bf16",),
)
INT8_BESIDE_TORCH = Figure(
    "ModernBERT-base in int8 scored 6.8 pairs/s, and 3.7 with torch in bf16, on two AMD cores",
    "2026-11-23-modernbert-cpu-2-cores.md",
    ("avx512_bf16",),
)


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding, its remedy, and measured effects of the remedy."""

    what: str
    helps: str
    figures: tuple[Figure, ...] = ()

    def lines(self, here: Processor) -> Iterator[str]:
        """Write the advice, with a line for each figure."""
        yield f"{self.what}: {self.helps}"
        for each in self.figures:
            lacking = [name for name in each.needs if name not in here.instructions]
            but = f"; this processor lacks {', '.join(lacking)}" if lacking else ""
            yield f"{each.said}{but} (docs/benchmarks/{each.report})"
        if not self.figures:
            yield "the gain was not measured"


def advise(
    here: Processor,
    gpus: Gpus,
    runtimes: Sequence[FoundRuntime],
    attention: Sequence[FoundKernel],
    kept_exports: int,
) -> list[Advice]:
    """List what would make rankers faster, the largest gain first; empty if nothing is known."""
    found = {each.name: each for each in runtimes}
    if gpus.devices:
        return list(_on_gpu(found, attention))
    advice = list(_with_gpu(gpus))
    exported = Advice(
        "torch serves rankers that have no export",
        "farrank serve --export auto exports each at its first start, and serves int8 if that keeps its "
        "rankings",
        (INT8, INT8_BESIDE_TORCH),
    )
    lacking = [package for package in _EXPORTING if find_spec(package) is None]
    if not found["openvino"].serves:
        extras = "openvino,export" if lacking else "openvino"
        advice.append(
            Advice(
                "openvino is not installed",
                f"pip install 'farrank[{extras}]', then farrank serve --export auto serves int8",
                exported.figures,
            )
        )
    elif lacking:
        installs = f"pip install 'farrank[export]' ({', '.join(lacking)} missing), then {exported.helps}"
        advice.append(Advice(exported.what, installs, exported.figures))
    elif not kept_exports:
        advice.append(exported)
    if here.cores < here.present:
        advice.append(
            Advice(
                f"this process may use {here.cores} of {here.present} cores",
                "raise its CPU affinity, or the quota of its container",
            )
        )
    return advice


def _with_gpu(gpus: Gpus) -> Iterator[Advice]:
    if gpus.driver is None:
        return
    if gpus.cuda is None:
        yield Advice(
            f"NVIDIA's driver {gpus.driver} is loaded, but torch is built without CUDA",
            "install torch from PyPI, whose build for Linux has CUDA, or use the image `cuda`",
        )
    else:
        yield Advice(
            f"NVIDIA's driver {gpus.driver} is loaded, but torch sees no GPU",
            f"{gpus.missing}; give the container the GPU, or update the driver for CUDA {gpus.cuda}",
        )


def _on_gpu(found: dict[str, FoundRuntime], attention: Sequence[FoundKernel]) -> Iterator[Advice]:
    for each in attention:
        if each.name == "flash_attn" and each.missing:
            yield Advice(each.missing, "pip install flash-attn: it also takes ALiBi's slopes")
    if "cuda" not in found["tensorrt"].serves:
        yield Advice(
            "TensorRT cannot be used",
            "; ".join(found["tensorrt"].missing) or "pip install 'farrank[tensorrt]'",
        )
