"""The choice of a runtime, and the errors when there is none."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from farrank_rankers.errors import ExportError, SpecError
from farrank_rankers.exports.export_folder import MANIFEST, Export, find_exports
from farrank_rankers.exports.manifest import RefusedRuntime
from farrank_rankers.files.open import open_ranker
from farrank_runtimes import choose
from farrank_runtimes.choose import candidates, open_ranker_runtime
from farrank_runtimes.runtime import (
    DeviceAbsent,
    Placement,
    Precision,
    PrecisionAbsent,
    RuntimeAbsent,
)
from farrank_runtimes.runtime_table import DeviceType

QUERY = "where does the river rise"
CPU = Placement(device="cpu", threads=1)
ALL = {
    "onnx-fp32": ("onnx", "openvino"),
    "onnx-fp16": ("onnx",),
    "onnx-bf16": ("openvino",),
    "onnx-int8": ("onnx", "openvino"),
    "tensorrt-fp16": ("tensorrt",),
    "tensorrt-fp32": ("tensorrt",),
}


@pytest.fixture
def exports(tiny_exports: dict[str, Path]) -> Callable[..., list[Export]]:
    """Make exports with these names. Only their manifests are read."""
    (one,) = find_exports(tiny_exports["maxp"])

    def named(*names: str) -> list[Export]:
        made = []
        for name in names:
            form, precision = name.split("-")
            manifest = replace(one.manifest, format=form, precision=precision, runtimes=ALL[name])  # type: ignore[arg-type]
            made.append(Export(one.folder, manifest))
        return made

    return named


@pytest.mark.parametrize(
    ("device", "names", "runtime", "precision", "first"),
    [
        ("cpu", tuple(ALL), "auto", None, "openvino with onnx-int8"),
        ("cpu", ("onnx-fp32", "onnx-bf16"), "auto", None, "openvino with onnx-bf16"),
        ("cpu", ("onnx-fp32",), "auto", None, "openvino with onnx-fp32"),
        ("cpu", ("onnx-fp16",), "auto", None, "torch fp32"),
        ("cpu", ("tensorrt-fp16",), "auto", None, "torch fp32"),
        ("cpu", (), "auto", None, "torch fp32"),
        ("cpu", tuple(ALL), "auto", "fp32", "openvino with onnx-fp32"),
        ("cpu", tuple(ALL), "auto", "fp16", "onnx with onnx-fp16"),
        ("cpu", ("onnx-fp32",), "auto", "bf16", "torch bf16"),
        ("cpu", ("onnx-fp32",), "auto", "int8", None),
        ("cpu", tuple(ALL), "onnx", None, "onnx with onnx-int8"),
        ("cpu", tuple(ALL), "onnx", "fp32", "onnx with onnx-fp32"),
        ("cpu", tuple(ALL), "torch", None, "torch fp32"),
        ("cpu", ("onnx-bf16",), "onnx", None, None),
        ("cpu", tuple(ALL), "openvino", "fp16", None),
        ("cuda", tuple(ALL), "auto", None, "tensorrt with tensorrt-fp16"),
        ("cuda", ("onnx-fp16", "onnx-fp32"), "auto", None, "onnx with onnx-fp16"),
        ("cuda", ("onnx-fp32",), "auto", None, "torch bf16"),
        ("cuda", ("onnx-fp32",), "auto", "fp32", "onnx with onnx-fp32"),
        ("cuda", tuple(ALL), "auto", "fp32", "tensorrt with tensorrt-fp32"),
        ("cuda", (), "auto", None, "torch bf16"),
        ("cuda", tuple(ALL), "tensorrt", None, "tensorrt with tensorrt-fp16"),
        ("cuda", tuple(ALL), "torch", None, "torch bf16"),
    ],
)
def test_the_fastest_that_is_there_comes_first(
    exports: Callable[..., list[Export]],
    device: DeviceType,
    names: tuple[str, ...],
    runtime: str,
    precision: Precision | None,
    first: str | None,
) -> None:
    found = [str(each) for each in candidates(device, exports(*names), runtime, precision)]
    assert (found[0] if found else None) == first
    assert len(set(found)) == len(found)


def served_names(artifact: Path, **asked: object) -> tuple[str, str]:
    served = open_ranker_runtime(str(artifact), {}, placement=CPU, **asked)  # type: ignore[arg-type]
    runs = served.runtime.capabilities()
    return runs.runtime, served.reason


def test_an_export_is_served_without_its_rankers_weights(
    tiny_exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the ranker's own version, and the manifest's evidence and report."""
    ranker = open_ranker(tiny_exports["biencoder"])

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr("farrank_rankers.files.load.load_weights", refuse)
    monkeypatch.setattr(choose, "open_ranker", refuse)
    served = open_ranker_runtime(str(tiny_exports["biencoder"]), {}, runtime="onnx", placement=CPU)
    assert served.version == ranker.version
    assert served.evidence is ranker.aggregator.evidence
    assert served.reason == "onnx with onnx-fp32, as configured"
    assert served.parity is not None
    assert served.parity.documents == 20


def test_absent_runtimes_are_skipped_and_named(
    tiny_exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(runtime: str, precision: Precision, placement: Placement) -> None:
        if runtime == "openvino":
            raise RuntimeAbsent("OpenVINO is not installed; pip install it")

    monkeypatch.setattr(choose, "check_here", check)
    assert served_names(tiny_exports["maxp"]) == (
        "onnx",
        "onnx with onnx-fp32, the fastest that can serve this ranker here; "
        "faster but not usable here: openvino with onnx-fp32 (OpenVINO is not installed; pip install it)",
    )
    with pytest.raises(RuntimeAbsent, match="pip install it"):
        open_ranker_runtime(str(tiny_exports["maxp"]), {}, runtime="openvino", placement=CPU)


def test_without_an_export_torch_serves(tiny_rankers: dict[str, Path]) -> None:
    served = open_ranker_runtime(str(tiny_rankers["maxp"]), {}, placement=CPU)
    assert served.runtime.capabilities().runtime == "torch"
    assert served.parity is None
    assert served.version == open_ranker(tiny_rankers["maxp"]).version


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (
            {"runtime": "onnx"},
            RuntimeAbsent,
            "can be served with onnx here; its exports: none; try farrank export .* --format onnx",
        ),
        (
            {"precision": "int8"},
            PrecisionAbsent,
            "in int8; its exports: none; try .* --format onnx --precision int8$",
        ),
        ({"runtime": "onnx", "precision": "int8"}, PrecisionAbsent, "in int8 that onnx serves"),
        (
            {"runtime": "torch", "precision": "fp16"},
            PrecisionAbsent,
            "^torch serves fp32 and bf16 on cpu, not fp16$",
        ),
        # An export in bf16 is for OpenVINO, so it would not help.
        (
            {"runtime": "onnx", "precision": "bf16"},
            PrecisionAbsent,
            "^onnx serves fp32, fp16 and int8 on cpu, not bf16$",
        ),
        ({"runtime": "tensorrt"}, RuntimeAbsent, "has no TensorrtExecutionProvider.*pip install"),
    ],
)
def test_unservable_choices_are_refused_with_a_remedy(
    tiny_rankers: dict[str, Path], asked: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_ranker_runtime(str(tiny_rankers["maxp"]), {}, placement=CPU, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runtime", "precision", "message"),
    [
        ("onnx", "bf16", "^onnx serves fp32 and fp16 on cuda, not bf16$"),
        ("onnx", "int8", "^onnx serves fp32 and fp16 on cuda, not int8$"),
        ("tensorrt", "fp16", "try farrank export .* --format tensorrt --precision fp16$"),
        ("openvino", None, "^openvino does not run on cuda; try --device cpu$"),
    ],
)
def test_on_a_gpu_no_export_is_advised_that_nothing_makes(
    tiny_rankers: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    precision: Precision | None,
    message: str,
) -> None:
    monkeypatch.setattr(choose, "check_here", lambda *given: None)
    monkeypatch.setattr(choose, "choose_device", torch.device)
    placement = Placement(device="cuda")
    with pytest.raises((RuntimeAbsent, PrecisionAbsent), match=message):
        open_ranker_runtime(
            str(tiny_rankers["maxp"]), {}, runtime=runtime, precision=precision, placement=placement
        )


def test_a_device_that_is_not_here_stops_the_start(tiny_rankers: dict[str, Path]) -> None:
    with pytest.raises(DeviceAbsent, match="cuda:99"):
        open_ranker_runtime(str(tiny_rankers["maxp"]), {}, placement=Placement(device="cuda:99"))


def test_overrides_that_the_graph_does_not_depend_on_stay_possible(tiny_exports: dict[str, Path]) -> None:
    overrides = {"window": 64, "stride": 32, "max_document_tokens": 200}
    served = open_ranker_runtime(str(tiny_exports["maxp"]), overrides, runtime="onnx", placement=CPU)  # type: ignore[arg-type]
    assert served.reader.spec.chunking.window == 64
    assert served.version == open_ranker(tiny_exports["maxp"], **overrides).version  # type: ignore[arg-type]


def test_an_override_that_an_export_cannot_follow_is_served_by_torch(tiny_exports: dict[str, Path]) -> None:
    served = open_ranker_runtime(str(tiny_exports["maxp"]), {"max_query_tokens": 20}, placement=CPU)
    assert served.runtime.capabilities().runtime == "torch"
    assert (
        "faster but not usable here: openvino with onnx-fp32 (max_query_tokens is 20; the export was made for"
        in served.reason
    )
    with pytest.raises(SpecError, match="max_query_tokens is 20"):
        open_ranker_runtime(
            str(tiny_exports["maxp"]), {"max_query_tokens": 20}, runtime="onnx", placement=CPU
        )


def test_a_changed_byte_is_refused_and_never_passed_over(
    tiny_exports: dict[str, Path], tmp_path: Path
) -> None:
    artifact = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    graph = artifact / "exports" / "onnx-fp32" / "aggregator.onnx"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    with pytest.raises(ExportError, match=r"aggregator\.onnx is damaged"):
        open_ranker_runtime(str(artifact), {}, placement=CPU)
    assert served_names(artifact, runtime="torch")[0] == "torch"


def test_a_ranker_that_changed_since_makes_its_export_stale(
    tiny_exports: dict[str, Path],
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
) -> None:
    artifact = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    weights = tiny_rankers["sump"] / "model.safetensors"
    (artifact / "model.safetensors").write_bytes(weights.read_bytes())
    with pytest.raises(ExportError, match=r"stale.*model\.safetensors changed since"):
        open_ranker_runtime(str(artifact), {}, placement=CPU)


def test_a_refused_runtime_is_reported_with_the_reason(tiny_exports: dict[str, Path], tmp_path: Path) -> None:
    artifact = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    (export,) = find_exports(artifact)
    refused = (RefusedRuntime("onnx", "with onnx kendall_tau is 0.9, and it must be kendall_tau >= 0.95"),)
    manifest = replace(export.manifest, runtimes=("openvino",), refused=refused)
    (export.folder / MANIFEST).write_text(manifest.to_json())
    with pytest.raises(RuntimeAbsent, match=r"onnx may not serve .*onnx-fp32: with onnx kendall_tau is 0\.9"):
        open_ranker_runtime(str(artifact), {}, runtime="onnx", placement=CPU)
    assert open_ranker_runtime(str(artifact), {}, placement=CPU).reason.startswith("openvino with onnx-fp32")
