"""`farrank doctor` on this machine, and its output for others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from farrank_cli import advice
from farrank_runtimes.installed import FoundKernel, FoundRuntime, Gpu, Gpus
from farrank_runtimes.machine import Processor

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


HERE = Processor("Some", "x86_64", 2, 2, ("avx2", "avx512", "vnni", "avx512_bf16"))
NO_GPU = Gpus(None, None, (), "torch is built without CUDA")
RUNTIMES = [
    FoundRuntime("torch", "2.13.0", {"cpu": ("fp32", "bf16")}, ()),
    FoundRuntime("openvino", "2026.4.1", {"cpu": ("int8", "fp32")}, ()),
    FoundRuntime("tensorrt", None, {}, ("no CUDA device",)),
]
WITHOUT_OPENVINO = [
    RUNTIMES[0],
    FoundRuntime("openvino", None, {}, ("OpenVINO is not installed",)),
    RUNTIMES[2],
]
FLASH = FoundKernel("flash_attn", None, "flash_attn is not installed")


def lines(found: list[advice.Advice]) -> str:
    return "\n".join(f"{each.what}: {each.helps}" for each in found)


def test_it_tells_the_machine_and_all_that_is_installed(
    farrank: Farrank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARRANK_CACHE", str(tmp_path))
    export = tmp_path / "exports" / "mine-1a2b" / "exports" / "onnx-int8"
    export.mkdir(parents=True)
    (export / "manifest.json").write_text("{}" + " " * 998)

    told = farrank("doctor")
    outcome = farrank("doctor", "--json")
    found: dict[str, Any] = json.loads(outcome.out)

    assert (told.exit_code, told.err, outcome.exit_code, outcome.err) == (0, "", 0, "")
    assert found["farrank"] == version("farrank")
    assert found["server"] is None
    assert 1 <= found["processor"]["cores"] <= found["processor"]["present"]
    able = torch.cpu.get_capabilities()
    for ours, torchs in (("avx2", "avx2"), ("avx512", "avx512_f"), ("amx_bf16", "amx_bf16")):
        assert (ours in found["processor"]["instructions"]) == bool(able.get(torchs)), ours
    assert found["memory"]["total"] > found["memory"]["available"] > 0
    runtimes = {each["name"]: each for each in found["runtimes"]}
    assert list(runtimes) == ["torch", "onnx", "openvino", "tensorrt"]
    assert runtimes["torch"]["version"] == version("torch")
    assert runtimes["openvino"]["version"] == version("openvino")
    assert runtimes["torch"]["serves"]["cpu"] == ["fp32", "bf16"]
    assert {"int8", "fp32"} <= set(runtimes["openvino"]["serves"]["cpu"])
    assert ("bf16" in runtimes["openvino"]["serves"]["cpu"]) == bool(
        able.get("avx512_bf16") or able.get("amx_bf16")
    )
    assert bool(found["gpus"]["devices"]) == torch.cuda.is_available()
    assert bool(found["gpus"]["missing"]) != torch.cuda.is_available()
    assert [each["name"] for each in found["attention"]] == ["flash_attn", "torch varlen", "torch flex"]
    assert found["search"]["pyserini"] == version("pyserini")
    assert int(found["search"]["java"].split(".")[0]) >= 21
    (kept, hub) = found["caches"]
    assert (kept["folder"], kept["entries"], kept["size"]) == (str(tmp_path / "exports"), 1, 1000)
    assert hub["name"] == "hub"
    for said in (
        version("torch"),
        version("openvino"),
        str(tmp_path),
        "pyserini",
        "GPU: ",
        "1 export, 1000 B",
    ):
        assert said in told.out
    assert not re.search(r"[{}\[\]]|None", re.sub(r"'farrank\[.*?\]'", "", told.out))


def test_without_the_servers_packages_the_machine_is_described(tmp_path: Path) -> None:
    """As after `pip install farrank`: only the client is installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'numpy', 'transformers'): sys.modules[name] = None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "farrank_cli", "doctor"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "processor: " in done.stdout
    assert "no ranker can be served: pip install 'farrank[server]' (no module " in done.stdout


def test_openvino_is_advised_where_it_is_missing() -> None:
    found = advice.advise(HERE, NO_GPU, WITHOUT_OPENVINO, [FLASH], 0)
    assert [each.what for each in found] == ["openvino is not installed"]
    assert found[0].helps == ("pip install 'farrank[openvino]', then farrank serve --export auto serves int8")


def test_an_export_is_advised_where_none_is_kept_and_its_packages_where_they_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (to_export,) = advice.advise(HERE, NO_GPU, RUNTIMES, [FLASH], 0)
    assert to_export.helps.startswith("farrank serve --export auto")
    assert advice.advise(HERE, NO_GPU, RUNTIMES, [FLASH], 1) == []
    monkeypatch.setattr(advice, "_EXPORTING", ("onnx", "no_such_package"))
    (to_install,) = advice.advise(HERE, NO_GPU, RUNTIMES, [FLASH], 1)
    assert "pip install 'farrank[export]' (no_such_package missing)" in to_install.helps


def test_cores_that_a_container_keeps_back_are_named() -> None:
    found = advice.advise(replace(HERE, present=64), NO_GPU, RUNTIMES, [FLASH], 1)
    assert "this process may use 2 of 64 cores" in lines(found)


def test_unusable_gpus_and_missing_packages_for_usable_ones() -> None:
    unbuilt = Gpus("570.86.15", None, (), "torch is built without CUDA")
    assert "driver 570.86.15 is loaded, but torch is built without CUDA" in lines(
        advice.advise(HERE, unbuilt, RUNTIMES, [FLASH], 1)
    )
    unseen = Gpus("470.1", "13.0", (), "The NVIDIA driver on your system is too old")
    assert "is too old" in lines(advice.advise(HERE, unseen, RUNTIMES, [FLASH], 1))
    used = Gpus("570.86.15", "13.0", (Gpu("H100", 80 * 2**30, "9.0"),), None)
    said = lines(advice.advise(HERE, used, RUNTIMES, [FLASH], 0))
    assert "flash_attn is not installed: pip install flash-attn" in said
    assert "TensorRT cannot be used" in said
