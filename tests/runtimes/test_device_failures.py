"""Failures of the device are distinguished from the model's, whichever library reports them."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import DeviceLost, OutOfMemory
from farrank_runtimes.torch_runtime import TorchRuntime

EXHAUSTED = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (MemoryError(), OutOfMemory),
        # torch and Triton
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (RuntimeError(EXHAUSTED), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: out of memory"), OutOfMemory),
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("CUDA error: device-side assert triggered"), DeviceLost),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RuntimeError),
        # ONNX Runtime
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), OutOfMemory),
        (RuntimeError("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0"), OutOfMemory),
        (RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0"), DeviceLost),
        (RuntimeError("CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR"), DeviceLost),
        (RuntimeError("Non-zero status code returned while running Gather node"), RuntimeError),
        # OpenVINO
        (RuntimeError("Exception from cpu_memory.cpp:257:\nFailed to allocate 50331648 bytes"), OutOfMemory),
        (RuntimeError("Eltwise shape infer input shapes dim index: 1 mismatch"), RuntimeError),
        # An error that is already classified stays unchanged.
        (DeviceLost("out of memory, and then some"), DeviceLost),
    ],
)
def test_the_devices_failures_are_distinguished_from_the_models(
    raised: Exception, told: type[Exception]
) -> None:
    with pytest.raises(told) as failed, device_failures():
        raise raised
    assert type(failed.value) is told


def test_real_exhaustion_of_host_memory_is_reported() -> None:
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


def test_an_encoder_that_runs_out_of_memory_says_so(tiny_rankers: dict[str, Path]) -> None:
    class Failing(torch.nn.Module):
        def infer(self, *inputs: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(EXHAUSTED)

    ranker = open_ranker(tiny_rankers["maxp"])
    ranker.encoder = Failing()  # type: ignore[assignment]
    ids = np.ones(4, dtype=np.int32)
    with pytest.raises(OutOfMemory):
        TorchRuntime(ranker, "fp32", "cpu").encode([EncoderInput(ids, ids, ids)])
