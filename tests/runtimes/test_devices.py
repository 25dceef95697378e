"""The choice of a device, and the batches that it takes."""

import pytest
import torch

from farrank_runtimes.devices import (
    affordable_tokens,
    choose_device,
    free_memory,
    max_kept_bytes,
)
from farrank_runtimes.runtime import DeviceAbsent


@pytest.mark.parametrize("name", ["cuda:99", "toaster", "meta"])
def test_a_device_that_is_not_here_stops_the_start(name: str) -> None:
    with pytest.raises(DeviceAbsent, match=f"^'{name}'"):
        choose_device(name)


@pytest.mark.parametrize(
    ("values", "memory_bytes", "tokens"),
    [
        (768, 80 * 2**30, 65_536),  # token vectors of BERT-base
        (13 * 768, 80 * 2**30, 65_536),  # of all its layers, as CEDR keeps them
        (13 * 768, 24 * 2**30, 20_164),
        (13 * 768, 8 * 2**30, 6_721),
        (10**9, 2**20, 1),
    ],
)
def test_features_bound_a_batch(values: int, memory_bytes: int, tokens: int) -> None:
    assert affordable_tokens(65_536, values, memory_bytes) == tokens


def test_a_gpu_has_room_for_an_eighth_of_its_memory_and_a_cpu_is_not_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert max_kept_bytes(torch.device("cuda:0")) == 10 * 2**30
    assert max_kept_bytes(torch.device("cpu")) is None


def test_memory_is_given_back_whatever_state_the_device_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    free_memory(torch.device("cuda:0"))
