"""Advice that makes rankers faster on a machine; docs/benchmarks has the measured gains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from farrank_runtimes.installed import FoundKernel, FoundRuntime, Gpus
from farrank_runtimes.machine import Processor

# The packages of `farrank[export]` besides the runtimes.
_EXPORTING = ("onnx", "onnxscript", "nncf")


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding and its remedy."""

    what: str
    helps: str


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
    )
    lacking = [package for package in _EXPORTING if find_spec(package) is None]
    if not found["openvino"].serves:
        extras = "openvino,export" if lacking else "openvino"
        advice.append(
            Advice(
                "openvino is not installed",
                f"pip install 'farrank[{extras}]', then farrank serve --export auto serves int8",
            )
        )
    elif lacking:
        installs = f"pip install 'farrank[export]' ({', '.join(lacking)} missing), then {exported.helps}"
        advice.append(Advice(exported.what, installs))
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
