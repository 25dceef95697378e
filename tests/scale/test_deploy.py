"""The file of `farrank scale up --print-config`, deployed and changed by Ray's own `serve deploy`."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_serve_deploys_the_printed_file_and_keeps_replicas_when_their_number_or_rankers_change(
    cluster: Any,
    dashboard_port: int,
    config: ServerConfig,
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    farrank: Callable[..., Outcome],
) -> None:
    file, printed = tmp_path / "farrank.yaml", tmp_path / "serve.yaml"
    file.write_text(sources.to_yaml(config, ()))

    def deploy(replicas: int, **options: Any) -> None:
        told = farrank(
            *("scale", "up", "--config", file, "--head-only", "--replicas", replicas, "--print-config")
        )
        assert told.exit_code == 0, told.err
        tree = yaml.safe_load(told.out)
        tree["applications"][0]["deployments"][0].update(options)
        printed.write_text(yaml.safe_dump(tree))
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

        def entry(source: Path) -> dict[str, Any]:
            return {"rankers": {"tiny": {"source": str(source)}}}

        def described(holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            """Wait for a description of the only replica. Calls are answered meanwhile."""

            def asked() -> dict[str, Any]:
                assert len(client.rerank("which river", ["a river", "bread"]).results) == 2
                (told,) = json.loads(farrank("scale", "status").out)["replicas"]
                return dict(told)

            return when(asked, holds)

        deploy(1, user_config=entry(tiny_rankers["firstp"]))
        changed = described(lambda told: told["rankers"] != before["rankers"])
        assert (changed["replica"], changed["problem"]) == (before["replica"], "")
        assert {"tiny": client.rankers().rankers[0].version} == changed["rankers"]

        deploy(1, user_config=entry(tmp_path / "absent"))
        broken = described(lambda told: bool(told["problem"]))
        assert "rankers.tiny" in broken["problem"]
        assert broken == {**changed, "problem": broken["problem"], "backlog_s": broken["backlog_s"]}

    # A further replica begins with the changed rankers.
    deploy(2, user_config=entry(tiny_rankers["firstp"]))
    both = replicas(2)
    assert before["replica"] in {each["replica"] for each in both}
    assert [each["rankers"] for each in both] == [changed["rankers"]] * 2
    assert farrank("scale", "down").exit_code == 0
