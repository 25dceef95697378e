"""The settings that importing the package makes before any library can be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the network accesses from Python, and the processes that are started for such.
WATCHED = """
import sys
seen = []
watched = ("socket.connect", "socket.getaddrinfo", "urllib", "subprocess", "os.fork", "os.posix_spawn")
sys.addaudithook(lambda event, args: seen.append(event) if event.startswith(watched) else None)
import farrank_runtimes
{use}
print(seen)
"""
USES = {
    "openvino": "import openvino; openvino.Core().available_devices",
    "nncf": "import nncf.telemetry; nncf.telemetry.telemetry.send_event('nncf_ov', 'quantize', 'test')",
    "onnxruntime": """
import onnx, onnxruntime
from onnx import helper
value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "test", [value("x")], [value("y")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
""",
}


@pytest.mark.parametrize("module", USES)
def test_no_runtime_reports_anything_or_leaves_an_identifier(module: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    # In an environment that looks like a test or a build farm, these libraries would be quiet by themselves.
    kept = {key: value for key, value in os.environ.items() if key not in ("CI", "ORT_DISABLE_TELEMETRY")}
    told = subprocess.run(
        [sys.executable, "-c", WATCHED.format(use=USES[module])],
        env=kept | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[]\n"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# Prints OpenMP's variables at the first import of torch, and ends there.
WAITING = """
import os, sys
def tell(event, args):
    if event == "import" and args[0] == "torch":
        print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
        os._exit(0)
sys.addaudithook(tell)
import {module}, torch
"""


@pytest.mark.parametrize(
    ("module", "set_to", "used"),
    [
        ("farrank_server.run", None, "PASSIVE"),
        ("farrank_bench.__main__", None, "PASSIVE"),
        ("farrank_runtimes.devices", "ACTIVE", "ACTIVE"),
    ],
)
def test_torchs_threads_sleep_while_they_wait_unless_configured_to_spin(
    module: str, set_to: str | None, used: str
) -> None:
    kept = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    told = subprocess.run(
        [sys.executable, "-c", WAITING.format(module=module)],
        env=kept if set_to is None else kept | {"OMP_WAIT_POLICY": set_to},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{used}\n"
