"""`farrank export` and `farrank rankers exports` as users call them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrank_exporters.export
import farrank_exporters.parity
from farrank_cli.exit_codes import INTERRUPTED
from farrank_exporters.parity import BeyondBound, measure
from farrank_rankers.exports.export_folder import find_exports
from farrank_rankers.exports.manifest import ExportParity, Graph
from farrank_rankers.files.open import open_ranker
from support import forked
from support.exported_rankers import TracedRanker
from support.published_exports import save_cross_encoder

if TYPE_CHECKING:
    from farrank_rankers.ranker import Ranker
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]

TEXT = "a query of several words finds passages of documents about nothing in particular"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = [{"text": " ".join((WORDS[number:] + WORDS) * number)} for number in range(1, 13)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_a_ranker_is_exported_measured_and_listed(
    farrank: Farrank, tiny_rankers: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "exported"

    outcome = farrank("export", tiny_rankers["biencoder"], "--out", out, "--texts", texts)

    version = open_ranker(tiny_rankers["biencoder"]).version
    assert outcome.exit_code == 0
    assert re.fullmatch(r"0 of \d+ steps, tracing the encoder", outcome.err.splitlines()[0])
    first, *reports = outcome.out.splitlines()
    assert first == f"{out}/exports/onnx-fp32: onnx fp32, version {version}"
    assert [line.partition(":")[0] for line in reports] == ["onnx on cpu in fp32", "openvino on cpu in fp32"]
    assert all("6 documents" in line and "bound: max_difference <= " in line for line in reports)
    (export,) = find_exports(out)
    export.verify()
    assert open_ranker(out).version == version

    listed = farrank("rankers", "exports", out)

    assert listed.exit_code == 0
    assert [line.split()[:4] for line in listed.out.splitlines()[1:]] == [
        ["onnx-fp32", "fp32", "onnx", "fp32"],
        ["onnx-fp32", "fp32", "openvino", "fp32"],
    ]
    as_json = json.loads(farrank("rankers", "--json", "exports", out).out)
    assert as_json["exports"]["onnx-fp32"]["source_version"] == version
    assert as_json["cannot_be_exported"] is None

    again = farrank("export", tiny_rankers["biencoder"], "--out", out, "--texts", texts)

    assert again.exit_code == 2
    assert again.err.splitlines()[-1] == f"farrank: {export.folder} exists; --force replaces it"


def test_a_runtime_that_was_left_out_is_reported_and_listed(
    farrank: Farrank,
    tiny_exports: dict[str, Path],
    tiny_rankers: dict[str, Path],
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copied(ranker: Ranker, folder: Path, **named: Any) -> dict[str, Graph]:
        return TracedRanker.of(tiny_exports["biencoder"]).copied_to(folder)

    def measured(*arguments: Any, **named: Any) -> ExportParity:
        parity = measure(*arguments, **named)
        if parity.runtime == "onnx":
            raise BeyondBound("with onnx the bound is not held", parity)
        return parity

    monkeypatch.setattr(farrank_exporters.export, "trace_ranker", copied)
    monkeypatch.setattr(farrank_exporters.export, "measure", measured)
    monkeypatch.setattr(farrank_exporters.parity, "MIN_TAU", {"int8": -1.0})

    ranker = tiny_rankers["biencoder"]
    outcome = farrank("export", ranker, "--precision", "int8", "--out", tmp_path / "m", "--texts", texts)

    assert outcome.exit_code == 0
    _, served, made, left_out = outcome.out.splitlines()
    assert served.startswith("openvino on cpu in int8")
    assert left_out.startswith(
        "onnx will not serve it: with onnx the bound is not held; onnx on cpu in int8: "
    )
    assert made.startswith("openvino: ")
    assert made.endswith(" products in int8 (SmoothQuant at 0.95)")
    listed = farrank("rankers", "exports", tmp_path / "m").out.splitlines()
    assert [line.split()[2] for line in listed[1:3]] == ["openvino", "onnx"]
    assert listed[3] == f"onnx-int8, {made}"
    assert listed[1].endswith("yes")
    assert listed[2].endswith("no, beyond its bound")

    # fp32 needs no quantization and prints the same. An empty folder is in the export's place.
    (tmp_path / "m" / "exports" / "onnx-fp32").mkdir()
    flags = ("--out", tmp_path / "m", "--texts", texts, "--force", "--allow-drift")
    outcome = farrank("export", ranker, *flags)

    assert outcome.exit_code == 0
    _, drifting, served = outcome.out.splitlines()
    assert drifting.startswith("onnx on cpu in fp32")
    assert drifting.endswith("BEYOND ITS BOUND, kept by --allow-drift")
    assert served.startswith("openvino on cpu in fp32")
    assert " s left, scoring with openvino" in outcome.err
    listed = farrank("rankers", "exports", tmp_path / "m").out.splitlines()
    fp32 = [line.partition("yes")[2] for line in listed if line.startswith("onnx-fp32")]
    assert fp32 == [", beyond its bound", ""]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_nothing_behind(
    tiny_rankers: dict[str, Path], texts: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "farrank_cli", "export", str(tiny_rankers["maxp"])]
    command += ["--out", str(tmp_path / "exported"), "--texts", str(texts)]
    with forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert next(process.stderr).endswith(" steps, tracing the encoder\n")
        (building,) = tmp_path.iterdir()
        assert list(building.glob("exported/exports/.onnx-fp32.*/new"))
        process.send_signal(number)
        process.communicate(timeout=240)
    assert process.returncode == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_swallowed_still_ends_the_export(
    farrank: Farrank,
    tiny_exports: dict[str, Path],
    tiny_rankers: dict[str, Path],
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    def swallowing(ranker: Ranker, folder: Path, **named: Any) -> dict[str, Graph]:
        handler = signal.getsignal(number)
        assert callable(handler)
        with contextlib.suppress(KeyboardInterrupt):
            handler(number, None)
        return TracedRanker.of(tiny_exports["maxp"]).copied_to(folder)

    monkeypatch.setattr(farrank_exporters.export, "trace_ranker", swallowing)

    outcome = farrank("export", tiny_rankers["maxp"], "--out", tmp_path / "exported", "--texts", texts)

    assert (outcome.exit_code, outcome.out, outcome.err) == (INTERRUPTED, "", "")
    assert list(tmp_path.iterdir()) == []


def test_without_exports_the_error_says_how_to_make_one(
    farrank: Farrank, tiny_rankers: dict[str, Path]
) -> None:
    folder = tiny_rankers["maxp"]
    assert farrank("rankers", "exports", folder).out == (
        f"{folder} has no export; farrank export {folder} makes one\n"
    )
    assert farrank("rankers", "exports", "no/such/ranker").exit_code == 2


def test_a_damaged_manifest_is_named(farrank: Farrank, tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    artifact = Path(shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp"))
    manifest = artifact / "exports" / "onnx-fp32" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"manifest_version": 99}')

    outcome = farrank("rankers", "exports", artifact)

    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"farrank: {manifest}: manifest_version is 99; ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["embedded"], "--out is missing: embedded is not an artifact"),
        (["no/such/ranker"], "'no/such/ranker' is neither a folder nor the name of a model on the hub"),
        (["embedded", "--texts", "none.jsonl"], "none.jsonl: No such file"),
    ],
)
def test_wrong_usage_is_one_line(farrank: Farrank, arguments: list[str], complaint: str) -> None:
    outcome = farrank("export", *arguments)

    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"farrank: {complaint}")
    assert outcome.err.count("\n") == 1


@pytest.mark.skipif(importlib.util.find_spec("optimum") is not None, reason="optimum is installed")
@pytest.mark.parametrize(
    "flags",
    [
        ("--exporter", "optimum"),
        ("--layout", "optimum", "--exporter", "optimum"),
        ("--layout", "optimum", "--precision", "int8"),
        ("--layout", "optimum", "--optimize", "O3"),
    ],
)
def test_a_missing_optimum_is_reported_before_anything_is_loaded(flags: tuple[str, ...]) -> None:
    """Without torch, which takes seconds to import, and without looking for the ranker."""
    program = (
        "import sys; from farrank_cli.main import main; code = main(sys.argv[1:]); "
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "export", "no/such/ranker", *flags],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert done.stdout == "2 False\n"
    assert done.stderr == (
        f"farrank: {' '.join(flags[-2:]) if flags[-2] != '--precision' else ' '.join(flags)} needs optimum, "
        "which is not installed: pip install -c constraints-transformers-4.txt 'farrank[optimum]' in a "
        "separate environment, because it pins transformers to 4.57\n"
    )


def test_optimums_layout_is_written_and_refusals_name_the_flag(
    farrank: Farrank, texts: Path, tmp_path: Path
) -> None:
    source, out = tmp_path / "model", tmp_path / "plain"
    source.mkdir()
    save_cross_encoder(source)
    asked = ("export", source, "--layout", "optimum", "--texts", texts, "--out", out)

    outcome = farrank(*asked)

    assert outcome.exit_code == 0
    first, *reports = outcome.out.splitlines()
    version = open_ranker(source).version
    assert first == f"{out}/onnx/model.onnx: fp32, traced by torch, version {version}"
    assert {"onnx on cpu in fp32", "openvino on cpu in fp32"} <= {line.partition(":")[0] for line in reports}
    # Nobody asked for bf16, in which OpenVINO may compute a graph in fp32 on some processors.
    assert not any("in bf16" in line or "BEYOND" in line for line in reports)
    assert "0 steps, tracing with torch" in outcome.err.splitlines()
    assert (out / "onnx" / "model.onnx").is_file()

    for flags, reason in (
        (("--precision", "bf16"), "--precision is bf16; with --layout optimum it must be fp32 or int8"),
        (("--format", "tensorrt"), "--format is tensorrt; with --layout optimum it must be onnx"),
        ((), f"{out}/onnx/model.onnx exists; --force replaces it"),
    ):
        refused = farrank(*asked, *flags)
        assert refused.exit_code == 2
        assert reason in refused.err.splitlines()[-1]
    refused = farrank("export", source, "--optimize", "O2", "--out", tmp_path / "ours")
    assert refused.exit_code == 2
    assert "--optimize is O2; it needs --layout optimum" in refused.err
    assert not (tmp_path / "ours").exists()
