"""The installed runtimes, GPUs and attention kernels, and the reasons that others are missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.package_versions import package_version
from farrank_rankers.packed.flash_kernels import FLASH_ATTN, FlashAttention
from farrank_runtimes.machine import nvidia_driver
from farrank_runtimes.runtime import DeviceAbsent, Placement, Precision, PrecisionAbsent, RuntimeAbsent
from farrank_runtimes.runtime_table import RUNTIMES, DeviceType, check_here, installed_version


@dataclass(frozen=True, slots=True)
class FoundRuntime:
    """A runtime. `version` is its library's, None if that is not installed.

    `serves` gives the precisions that it can serve here by type of device; `missing` says why it serves no
    others, with the remedy.
    """

    name: str
    version: str | None
    serves: Mapping[DeviceType, tuple[Precision, ...]]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch can use; `compute_capability` in NVIDIA's form, memory in bytes."""

    name: str
    memory: int
    compute_capability: str


@dataclass(frozen=True, slots=True)
class Gpus:
    """`driver` and `cuda` are releases, the latter of torch; `missing` says why there is no device."""

    driver: str | None
    cuda: str | None
    devices: tuple[Gpu, ...]
    missing: str | None


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """Attention for packed batches on a GPU. `missing` says why it does not serve, None if it does."""

    name: str
    version: str | None
    missing: str | None


def find_runtimes(devices: Sequence[DeviceType]) -> list[FoundRuntime]:
    """Check every runtime on these types of devices, with every precision that it may serve there."""
    return [_runtime(name, devices) for name in RUNTIMES]


def _runtime(name: str, devices: Sequence[DeviceType]) -> FoundRuntime:
    serves: dict[DeviceType, tuple[Precision, ...]] = {}
    missing: list[str] = []
    for device, ranks in RUNTIMES[name].ranks.items():
        if device not in devices:
            missing.append("no CUDA device")
            continue
        able: list[Precision] = []
        for precision in sorted(ranks, key=lambda each: ranks[each]):
            try:
                check_here(name, precision, Placement(device))
                able.append(precision)
            except (RuntimeAbsent, PrecisionAbsent, DeviceAbsent) as absent:
                missing.append(str(absent))
            except (ImportError, OSError) as error:  # this is the linker's message
                missing.append(f"does not load: {error}")
        if able:
            serves[device] = tuple(able)
    return FoundRuntime(name, installed_version(name), serves, tuple(dict.fromkeys(missing)))


def find_gpus() -> Gpus:
    """List the GPUs that torch can use."""
    driver, cuda = nvidia_driver(), torch.version.cuda
    missing = None
    if cuda is None:
        missing = f"torch {torch.__version__} is built without CUDA"
        if driver is None:
            missing += ", and no NVIDIA driver is loaded"
    elif not torch.cuda.is_available():
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            missing = "torch sees none"
        except (RuntimeError, AssertionError) as error:
            missing = " ".join(str(error).split())
    devices = []
    for index in range(0 if missing else torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        devices.append(Gpu(facts.name, facts.total_memory, f"{facts.major}.{facts.minor}"))
    return Gpus(driver, cuda, tuple(devices), missing)


def find_attention() -> list[FoundKernel]:
    """Try to import each kernel of packed batches."""
    from farrank_rankers.packed.flex_attention import TRITON, check_compiler

    return [
        _kernel(FLASH_ATTN, package_version(FLASH_ATTN), FlashAttention),
        FoundKernel("torch varlen", torch.__version__, None),
        _kernel("torch flex", package_version(TRITON), check_compiler),
    ]


def _kernel(name: str, installed: str | None, use: Callable[[], object]) -> FoundKernel:
    try:
        use()
    except AttentionAbsent as absent:
        return FoundKernel(name, installed, str(absent))
    return FoundKernel(name, installed, None)
