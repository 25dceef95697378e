"""The server's reactions to signals, as in docs/how-to/starting.md."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client


def objective(server: SpawnedServer, metric_of: object) -> dict[float, float]:
    assert callable(metric_of)
    name = "farrank_latency_objective_ratio"
    bounds = (0.5, 1.0, 5.0)
    return {bound: share for bound in bounds if (share := metric_of(server, name, le=str(bound)))}


def test_sighup_reloads_the_objective_and_sigterm_drains(
    tiny_rankers: dict[str, Path], tmp_path: Path, metric_of: object
) -> None:
    file, pid_file, log = tmp_path / "farrank.yaml", tmp_path / "pid", tmp_path / "log"

    def configure(latency_s: float, share: float, threads: int) -> None:
        tree = {"objective": {"latency_s": latency_s, "share": share}, "tokenizer_threads": threads}
        ranker = {"rankers": {"maxp": {"source": str(tiny_rankers["maxp"])}}}
        file.write_text(json.dumps({**tree, **ranker}))

    configure(5.0, 0.99, 2)
    # The server's output on standard error.
    kept = os.dup(2)
    with log.open("wb") as opened:
        os.dup2(opened.fileno(), 2)
    try:
        flags = [f"--config={file}", f"--pid-file={pid_file}", "--log-format=json"]
        with spawned_server(flags) as server:
            os.dup2(kept, 2)
            assert objective(server, metric_of) == {5.0: 0.99}
            configure(0.5, 0.95, 3)
            assert main(["reload", "--pid-file", str(pid_file)]) == 0
            assert objective(server, metric_of) == {0.5: 0.95}
            configure(0.51, 0.95, 3)
            command = [sys.executable, "-m", "farrank_cli", "reload", "--pid-file", str(pid_file)]
            refused = subprocess.run(command, capture_output=True, text=True, timeout=240)
            assert refused.returncode != 0
            assert "objective.latency_s: 0.51 is not allowed" in refused.stderr
            assert objective(server, metric_of) == {0.5: 0.95}
            server.process.send_signal(signal.SIGPIPE)
            with Client(server.address) as client:
                assert client.rerank("river", ["the river"]).results
            server.process.terminate()
            assert server.process.wait(120) == 0
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    told = [each["message"] for each in lines if each["level"] == "warning"]
    assert told == ["changes to tokenizer_threads in the configuration take effect after a restart"]
    assert lines[-1]["message"] == "drained and ended"
