"""The same workload against a real peer: Infinity, with a tiny cross-encoder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

if TYPE_CHECKING:
    from support.commands import Outcome

INFINITY = os.environ.get("FARRANK_INFINITY", "")

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(not INFINITY, reason="FARRANK_INFINITY names no infinity_emb to start"),
]


@pytest.fixture(scope="module")
def cross_encoder(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross-encoder")
    for path in tiny_backbone.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    torch.manual_seed(0)
    config = BertConfig(**json.loads((tiny_backbone / "config.json").read_text()), num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def infinity(cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Infinity's URL, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [INFINITY, "v2", "--model-id", str(cross_encoder), "--served-model-name", "tiny"]
    command += ["--engine", "torch", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    log = tmp_path_factory.mktemp("infinity") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--no-model-warmup"], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
    try:
        url = f"http://127.0.0.1:{port}"
        ends_s = time.monotonic() + 180
        while not _answers(f"{url}/health"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends_s, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def test_infinity_is_measured_by_the_same_workload(
    farrank: Callable[..., Outcome], infinity: str, tmp_path: Path
) -> None:
    options = ["--synthetic", "uniform:10:600", "--documents", "3", "--calls", "10", "--ranker", "tiny"]
    options += ["--rates", "5,10", "--warm-up-s", "1", "--duration-s", "4", "--repeats", "1"]
    outcome = farrank(
        "loadtest", "latency", "--target", f"cohere:{infinity}/rerank", "--out", tmp_path, *options
    )
    assert outcome.exit_code == 0, outcome.err
    steps = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert [step["load"] for step in steps] == [5, 10]
    for step in steps:
        assert step["statuses"] == {"OK": step["offered"]}
        assert step["goodput_per_s"] > 1
        assert 0 < step["latency_s"]["p50"] < 5
        assert step["stages_s"] == {}
    # It reports no stages, so there is no chart of them.
    assert not (tmp_path / "stages.png").exists()
    assert (tmp_path / "latency.png").stat().st_size > 10_000


def test_refusals_of_infinity_are_reported(
    farrank: Callable[..., Outcome], infinity: str, tmp_path: Path
) -> None:
    options = ["--synthetic", "constant:9", "--rates", "5", "--out", tmp_path]
    elsewhere = farrank("loadtest", "latency", "--target", f"tei:{infinity}/nowhere", *options)
    assert elsewhere.exit_code == 1
    assert "[HTTP 404]" in elsewhere.err
