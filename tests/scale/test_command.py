"""`farrank scale` on the command line, on a real cluster."""

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farrank_client import Client
from farrank_server.config.schema import ServerConfig
from farrank_settings import sources
from support import forked
from support.commands import Outcome

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="needs the ray extra: pip install 'farrank[ray]'"
)

NAME = "farrank"
QUERY = "which river reaches the sea"
# Some seconds of work.
LONG = ["A ship sails over the sea towards the harbour. " * 100] * 200


def scale(*arguments: object) -> forked.Completed:
    """Run the command in its own process."""
    return forked.run([sys.executable, "-m", "farrank_cli", "scale", *map(str, arguments)])


def test_up_status_targets_and_a_down_that_answers_what_is_held(
    cluster: Any,
    config: ServerConfig,
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    farrank: Callable[..., Outcome],
) -> None:
    ranker = replace(config.rankers["tiny"], source=str(tiny_rankers["firstp"]))
    file, targets = tmp_path / "farrank.yaml", tmp_path / "targets.json"
    file.write_text(sources.to_yaml(replace(config, rankers={"tiny": ranker}), ()))
    on = ("--address", cluster.address)

    up = scale("up", *on, "--config", file, "--replicas", 1, "--head-only")
    assert up.returncode == 0, up.stderr
    address = f"127.0.0.1:{config.listen.port}"
    assert up.stdout == f"up name={NAME} grpc={address}\n"

    status = scale("status", *on)
    assert status.returncode == 0, status.stderr
    told = json.loads(status.stdout)
    assert (told["application"], told["status"], told["states"]) == (NAME, "RUNNING", {"RUNNING": 1})
    with Client(address) as client:
        assert {"tiny": client.rankers().rankers[0].version} == told["replicas"][0]["rankers"]

        listed = scale("targets", *on, "--out", targets)
        assert listed.returncode == 0, listed.stderr
        ((page,),) = (each["targets"] for each in json.loads(targets.read_text()))
        with urllib.request.urlopen(f"http://{page}/metrics") as answer:
            assert b"\nfarrank_requests_total{" in answer.read()

        # From here on in this process, which is connected: a new command would start more slowly than the
        # call ends.
        wrong = farrank("scale", "down", "--name", "other")
        assert wrong.exit_code == 1
        assert wrong.err == f"farrank: no application 'other' on this cluster; known are: {NAME}\n"
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(client.rerank, QUERY, LONG, timeout_s=600)
            while _backlog_s(farrank) == 0:
                assert not held.done()
                time.sleep(0.05)
            down = farrank("scale", "down")
            assert len(held.result().results) == len(LONG)
        assert down.exit_code == 0, down.err
        # Ray prints the end of Serve before this line.
        assert down.out.splitlines()[-1] == f"{NAME} is down"

    gone = farrank("scale", "status")
    assert gone.exit_code == 1
    assert gone.err == f"farrank: no application '{NAME}' on this cluster; known are: none\n"


def _backlog_s(farrank: Callable[..., Outcome]) -> float:
    (replica,) = json.loads(farrank("scale", "status").out)["replicas"]
    return float(replica["backlog_s"])
