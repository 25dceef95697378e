"""The file of `farrank scale up --print-config`, deployed by Ray's own `serve deploy`."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farrank_client import Client
from farrank_client.errors import NotFound
from farrank_server.config.schema import ServerConfig
from farrank_settings import sources
from support.commands import Outcome
from support.waiting import when

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="needs the ray extra: pip install 'farrank[ray]'"
)


def answered(client: Client) -> bool:
    try:
        client.rankers()
    except NotFound:
        return False
    return True


def test_serve_deploys_the_printed_file_and_keeps_replicas_when_their_number_changes(
    cluster: Any,
    dashboard_port: int,
    config: ServerConfig,
    tmp_path: Path,
    farrank: Callable[..., Outcome],
) -> None:
    file, printed = tmp_path / "farrank.yaml", tmp_path / "serve.yaml"
    file.write_text(sources.to_yaml(config, ()))

    def deploy(replicas: int) -> None:
        told = farrank(
            *("scale", "up", "--config", file, "--head-only", "--replicas", replicas, "--print-config")
        )
        assert told.exit_code == 0, told.err
        printed.write_text(told.out)
        serve = str(Path(sys.executable).with_name("serve"))
        command = [serve, "deploy", str(printed), "--address", f"http://127.0.0.1:{dashboard_port}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def replicas(count: int) -> list[Any]:
        """Wait until exactly this many replicas exist. Returns their descriptions."""

        def are_there(told: dict[str, Any]) -> bool:
            return told["states"] == {"RUNNING": count} and len(told["replicas"]) == count

        return list(when(lambda: json.loads(farrank("scale", "status").out), are_there)["replicas"])

    deploy(1)
    (before,) = replicas(1)
    with Client(f"127.0.0.1:{config.listen.port}") as client:
        # Proxies learn the application's route a moment after it runs.
        when(lambda: answered(client), lambda answers: answers)
        ranking = client.rerank("which river", ["a river", "bread"])
        assert len(ranking.results) == 2
        assert {"tiny": client.rankers().rankers[0].version} == before["rankers"]

    deploy(2)
    assert before["replica"] in {each["replica"] for each in replicas(2)}
    assert farrank("scale", "down").exit_code == 0
