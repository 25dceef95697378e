"""A runtime is a module and a row, which another package can add too."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from farrank_rankers.exports.export_folder import MANIFEST, find_exports
from farrank_rankers.files.open import open_ranker
from farrank_runtimes import onnx_runtime, openvino_runtime, tensorrt_runtime
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement, RuntimeAbsent
from farrank_runtimes.runtime_table import RUNTIMES, ExportRuntime, RuntimeRow, check_here, fastest_first
from support.runtime_scores import QUERY, TEXTS, scores_through

CPU = Placement(device="cpu", threads=1)

# A runtime of another package: ONNX Runtime under another name, which needs an environment variable.
MODULE = """
import os
from dataclasses import replace

from farrank_runtimes import onnx_runtime
from farrank_runtimes.runtime import RuntimeAbsent


def check(precision, placement):
    if "LICENCE" not in os.environ:
        raise RuntimeAbsent("set LICENCE")


def open_graphs(files, placement):
    runtime = onnx_runtime.open_graphs(files, placement)
    runtime._capabilities = replace(runtime.capabilities(), runtime="swift")
    return runtime
"""


@pytest.fixture
def swift(tiny_exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Add a runtime. Returns its artifact with an export that it may serve."""
    (tmp_path / "swift_runtime.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(RUNTIMES, "swift", RuntimeRow("swift_runtime", "onnx", {"cpu": {"fp32": 1}}))
    artifact = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    (export,) = find_exports(artifact)
    manifest = replace(export.manifest, runtimes=("onnx", "swift"))
    (export.folder / MANIFEST).write_text(manifest.to_json())
    return artifact


def test_every_module_has_what_its_row_calls() -> None:
    # mypy compares the signatures, including those of runtimes that cannot run here.
    modules: list[ExportRuntime] = [onnx_runtime, openvino_runtime, tensorrt_runtime]
    named = [RUNTIMES[each].load() for each in ("onnx", "openvino", "tensorrt")]
    assert named == modules
    assert [name for name, row in RUNTIMES.items() if row.reads is None] == ["torch"]


def test_a_runtime_from_outside_serves_what_it_reads(swift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LICENCE", "yes")
    served = open_ranker_runtime(str(swift), {}, placement=CPU)
    assert served.runtime.capabilities().runtime == "swift"
    assert served.reason == "swift with onnx-fp32, the fastest that can serve this ranker here"
    ranker = open_ranker(swift)
    wanted = [each.score for each in ranker.score(QUERY, TEXTS)]
    assert scores_through(served.runtime, ranker.reader) == pytest.approx(wanted, abs=1e-5)


def test_where_it_cannot_run_the_next_one_does_unless_it_was_named(swift: Path) -> None:
    served = open_ranker_runtime(str(swift), {}, placement=CPU)
    assert served.runtime.capabilities().runtime == "onnx"
    assert served.reason.endswith("faster but not usable here: swift with onnx-fp32 (set LICENCE)")
    with pytest.raises(RuntimeAbsent, match=r"^set LICENCE$"):
        open_ranker_runtime(str(swift), {}, runtime="swift", placement=CPU)


def test_an_unknown_runtime_is_named_with_the_known_ones() -> None:
    with pytest.raises(RuntimeAbsent, match="no runtime 'swfit'; known are torch, onnx, openvino, tensorrt"):
        check_here("swfit", "fp32", CPU)


def test_no_two_precisions_have_one_rank() -> None:
    for device in ("cpu", "cuda"):
        ranks = [rank for row in RUNTIMES.values() for rank in row.ranks.get(device, {}).values()]
        assert len(ranks) == len(set(ranks)) == len(fastest_first(device))


def test_the_table_is_read_without_torch_or_any_runtimes_library() -> None:
    script = """
import sys
import farrank_runtimes.runtime_table
print(sorted({"torch", "onnxruntime", "openvino", "transformers"} & set(sys.modules)))
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
