import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import choose_device, usable_cores
from farrank_runtimes.runtime import DeviceAbsent, DeviceLost, OutOfMemory, Precision, PrecisionAbsent
from farrank_runtimes.torch_runtime import TorchRuntime
from support.runtime_scores import QUERY, TEXTS, scores_through


# bf16 keeps 8 bits of a significand: some 0.4% of the largest value that meets in a sum.
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_cpu_scores_are_the_rankers_own(
    tiny_rankers: dict[str, Path], precision: Precision, bound: float
) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers["avgp"]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers["avgp"])
    runtime = TorchRuntime(ranker, precision, "cpu")
    assert runtime.capabilities().precision == precision
    assert scores_through(runtime, ranker) == pytest.approx(wanted, abs=bound)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("bf16", 2e-2)])
def test_cuda_scores_are_the_rankers_own(
    tiny_rankers: dict[str, Path], precision: Precision, bound: float
) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers["avgp"]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers["avgp"])
    assert scores_through(TorchRuntime(ranker, precision, "cuda:0"), ranker) == pytest.approx(
        wanted, abs=bound
    )


def test_a_precision_that_torch_does_not_serve_is_refused(tiny_rankers: dict[str, Path]) -> None:
    with pytest.raises(PrecisionAbsent, match=r"^torch serves fp32 and bf16, not int8$"):
        TorchRuntime(open_ranker(tiny_rankers["avgp"]), "int8", "cpu")


def test_the_last_layer_leaves_out_tokens_that_nothing_reads(tiny_rankers: dict[str, Path]) -> None:
    ranker = open_ranker(tiny_rankers["maxp"])
    runtime = TorchRuntime(ranker, device="cpu", threads=1)
    tokens: list[int] = []
    for layer in ranker.encoder.get_submodule("backbone.encoder.layer").children():
        layer.get_submodule("intermediate").register_forward_hook(
            lambda _, given, __: tokens.append(given[0].shape[1])
        )
    runtime.encode([EncoderInput(*(np.ones(9, dtype=np.int32) for _ in range(3)))])
    assert tokens == [9, 1]


def test_warming_up_measures_a_speed(tiny_rankers: dict[str, Path]) -> None:
    assert TorchRuntime(open_ranker(tiny_rankers["maxp"]), device="cpu").warm_up() > 0


class Failing(torch.nn.Module):
    """An encoder that raises what torch raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def infer(self, *inputs: torch.Tensor) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            OutOfMemory,
        ),
        (MemoryError(), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: out of memory"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("CUDA error: device-side assert triggered"), DeviceLost),
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemory),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RuntimeError),
    ],
)
def test_the_devices_failures_are_told_from_the_models(
    tiny_rankers: dict[str, Path], raised: Exception, told: type[Exception]
) -> None:
    ranker = open_ranker(tiny_rankers["maxp"])
    ranker.encoder = Failing(raised)  # type: ignore[assignment]
    ids = np.ones(4, dtype=np.int32)
    with pytest.raises(told) as failed:
        TorchRuntime(ranker, "fp32", "cpu").encode([EncoderInput(ids, ids, ids)])
    assert type(failed.value) is told


def test_real_exhaustion_of_host_memory_is_told() -> None:
    with pytest.raises(OutOfMemory), device_failures():
        torch.empty(2**50)


def test_a_failed_batch_is_let_go_while_its_error_is_held() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        hidden = torch.zeros(3)
        made.append(weakref.ref(hidden))
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(OutOfMemory) as told, device_failures():
        fails()
    assert told.value.__cause__ is not None
    assert made[0]() is None


@pytest.mark.parametrize("name", ["cuda:99", "toaster", "meta"])
def test_a_device_that_is_not_here_stops_the_start(name: str) -> None:
    with pytest.raises(DeviceAbsent, match=f"^'{name}'"):
        choose_device(name)


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", None), ("50000 100000", 1), ("100000 100000", 1), ("nonsense", None)]
)
def test_a_containers_quota_caps_the_threads(tmp_path: Path, quota: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == (cores or usable_cores(tmp_path / "absent"))
