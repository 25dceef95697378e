"""Infinity's own server on the loopback, torch engine, its defaults otherwise."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farrank_bench.contenders.rounds import ContenderFailed

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0


@contextmanager
def infinity_server(command: Path, model: Path, name: str, threads: int, folder: Path) -> Iterator[str]:
    """Start it, healthy when entered, ended when left; gives its /rerank as a load test names targets.

    `folder` takes its log and what it writes into its working directory.
    Raises: ContenderFailed if it does not get healthy.
    """
    port = _free_port()
    arguments = [str(command), "v2", "--model-id", str(model), "--served-model-name", name]
    arguments += ["--engine", "torch", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    # Its warm-up times batches for the log. The disk cache would answer the second run of the same calls.
    arguments += ["--no-model-warmup", "--no-vector-disk-cache"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    log = folder / "infinity.log"
    with log.open("w") as file:
        try:
            process = subprocess.Popen(
                arguments, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )
        except OSError as error:
            raise ContenderFailed(str(error)) from error
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(process, f"{url}/health", log)
        yield f"cohere:{url}/rerank"
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    ends_s = time.monotonic() + START_TIMEOUT_S
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > ends_s:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            how = "took too long to start" if process.returncode is None else "ended while it started"
            raise ContenderFailed(f"Infinity {how}: {said[-1] if said else 'it said nothing'}")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
