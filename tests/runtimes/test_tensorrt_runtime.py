"""The options for TensorRT, and the choice of a batch's engine. No test needs a GPU."""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.onnx_runtime import NAMES
from farrank_runtimes.runtime import DeviceAbsent, Placement, Precision, RuntimeAbsent
from farrank_runtimes.tensorrt_runtime import (
    LengthGroup,
    check,
    engine_folder,
    length_groups,
    open_graphs,
    run_grouped,
    tensorrt_options,
)

INPUTS = ("input_ids", "roles")


def test_groups_halve_from_the_longest_input() -> None:
    assert [(group.shortest, group.longest) for group in length_groups(512, 65_536)] == [
        (1, 64),
        (65, 128),
        (129, 256),
        (257, 512),
    ]


@given(longest=st.integers(1, 10_000), budget=st.integers(1, 200_000))
def test_every_batch_has_a_group_and_no_box_is_more_than_twice_the_budget(longest: int, budget: int) -> None:
    budget = max(budget, longest)
    groups = length_groups(longest, budget)
    assert 1 <= len(groups) <= 4
    assert groups[0].shortest == 1
    assert groups[-1].longest == longest
    assert all(one.longest + 1 == next_.shortest for one, next_ in pairwise(groups))
    taken: list[LengthGroup] = []

    def noting(group: LengthGroup, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        taken.append(group)
        return [inputs["input_ids"]]

    graphs = {group: partial(noting, group) for group in groups}
    for group in groups:
        for length in (group.shortest, group.longest):
            run_grouped(graphs, {"input_ids": torch.empty(1, length)})
        assert taken[-2:] == [group, group]
        assert 1 <= group.usual_rows <= group.rows
        assert group.rows * group.longest <= 2 * budget
        assert group.usual_rows * group.longest <= budget
    # All inputs but the first group's exceed half of their box, so one run takes any batch.
    for group in groups[1:]:
        assert budget // group.shortest <= group.rows


def test_an_input_beyond_the_engines_is_refused() -> None:
    graphs = dict.fromkeys(length_groups(512, 1024), Recorded().run)
    with pytest.raises(ValueError, match="513 tokens; the engines were built for at most 512"):
        run_grouped(graphs, {"input_ids": torch.empty(1, 513)})


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_options_as_the_provider_reads_them(precision: Precision) -> None:
    engines = Path("/artifact/engines/key/65-128x992")
    options = tensorrt_options(
        LengthGroup(65, 128, 992, 512), INPUTS, precision, device_index=1, engines=engines
    )
    assert options == {
        "device_id": "1",
        "trt_fp16_enable": str(precision == "fp16"),
        "trt_bf16_enable": str(precision == "bf16"),
        "trt_int8_enable": str(precision == "int8"),
        "trt_profile_min_shapes": "input_ids:1x65,roles:1x65",
        "trt_profile_opt_shapes": "input_ids:512x128,roles:512x128",
        "trt_profile_max_shapes": "input_ids:992x128,roles:992x128",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "/artifact/engines/key/65-128x992",
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": "/artifact/engines/key",
    }


def test_a_read_only_artifact_keeps_no_engines() -> None:
    group = LengthGroup(1, 64, 8, 4)
    options = tensorrt_options(group, INPUTS, "fp16", device_index=0, engines=None)
    assert not [name for name in options if "cache" in name]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Set the machine's facts in an engine's folder, and the wheels' versions by name."""
    told: dict[str, object] = {"gpu": "NVIDIA H100", "capability": (9, 0)}
    told |= {"onnxruntime-gpu": "1.31.1", "tensorrt-cu13-libs": "10.16.1.11"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: told["gpu"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: told["capability"])
    monkeypatch.setattr("farrank_rankers.package_versions.version", lambda wheel: told[wheel])
    return told


def test_every_dependency_of_an_engine_changes_its_folder(machine: dict[str, object], tmp_path: Path) -> None:
    graph, other = tmp_path / "encoder.onnx", tmp_path / "other.onnx"
    graph.write_bytes(b"graph")
    other.write_bytes(b"another")
    device = torch.device("cuda:0")
    folder = engine_folder(graph, "fp16", device)
    # Engines of earlier versions are found again.
    assert folder == "sm90-tensorrt-10.16.1.11-57cca1a5f29fc129"
    found = {folder, engine_folder(graph, "bf16", device), engine_folder(other, "fp16", device)}
    changes = {"gpu": "NVIDIA H200", "capability": (10, 0)}
    changes |= {"onnxruntime-gpu": "1.32.0", "tensorrt-cu13-libs": "10.17.0"}
    for key, value in changes.items():
        before, machine[key] = machine[key], value
        found.add(engine_folder(graph, "fp16", device))
        machine[key] = before
    assert len(found) == 7
    assert engine_folder(graph, "fp16", device) == folder


def test_groups_keep_their_engines_apart() -> None:
    groups = [*length_groups(512, 65_536), *length_groups(512, 4096)]
    assert len({group.name for group in groups}) == len(groups)


class Recorded:
    """A graph that returns its inputs, and records their shapes."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        self.shapes.append(tuple(inputs["input_ids"].shape))
        return [inputs["input_ids"].float(), inputs["roles"]]


def test_a_batch_runs_in_its_groups_session_in_pieces_if_need_be() -> None:
    graphs = {LengthGroup(1, 4, 3, 2): Recorded(), LengthGroup(5, 8, 2, 1): Recorded()}
    runs = {group: graph.run for group, graph in graphs.items()}
    for rows, length in ((7, 2), (3, 4), (1, 5), (2, 8)):
        ids = torch.arange(rows * length).reshape(rows, length)
        vectors, roles = run_grouped(runs, {"input_ids": ids, "roles": ids + 1})
        assert torch.equal(vectors, ids.float())
        assert torch.equal(roles, ids + 1)
    assert [graph.shapes for graph in graphs.values()] == [
        [(3, 2), (3, 2), (1, 2), (3, 4)],
        [(1, 5), (2, 8)],
    ]


def test_a_machine_without_it_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeAbsent, match=r"TensorrtExecutionProvider.*pip install 'farrank\[tensorrt\]'"):
        open_graphs(GraphFiles(tmp_path / "e", tmp_path / "a", "fp16", longest_input=512), Placement())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_it_needs_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: list(NAMES.values()))
    with pytest.raises(DeviceAbsent, match="runs on a CUDA device; the device is cpu"):
        check("fp16", Placement())
