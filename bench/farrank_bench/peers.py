"""The peers: sentence-transformers in a process of its own, Infinity in an environment of its own, too."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from farrank_bench.rounds import Contender, ContenderFailed, Scored, child
from farrank_loadtest.workloads import Call

PREDICT = "sentence-transformers' CrossEncoder.predict"
VERSION = "0.0.78"
CONSTRAINTS = Path(__file__).parents[1] / "infinity-constraints.txt"
NAMED_BY = "FARRANK_INFINITY"
INSTALL_TIMEOUT_S = 1200.0
START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0

# What its speed depends on.
_PACKAGES = ("infinity_emb", "torch", "transformers", "sentence-transformers", "tokenizers")


def infinity_command(cache: Path) -> Path:
    """Give the program: the one that FARRANK_INFINITY names, or that of an environment below `cache`.

    Raises: ContenderFailed if there is none and it cannot be installed.
    """
    named = os.environ.get(NAMED_BY)
    if named:
        return Path(named).absolute()
    folder = (cache / f"infinity-{VERSION}").absolute()
    ready, command = folder / ".ready", folder / "bin" / "infinity_emb"
    if not ready.exists():
        print(f"  installing Infinity {VERSION} into {folder}", flush=True)
        # This environment's pip installs into that one: making another pip takes longer than all else.
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
        pip += ["--disable-pip-version-check", "--constraint", str(CONSTRAINTS)]
        _run([*pip, f"infinity-emb[torch,server]=={VERSION}"], "pip")
        ready.touch()
    return command


def infinity_versions(command: Path) -> str:
    """List the versions that its speed depends on.

    Raises: ContenderFailed if its environment does not run.
    """
    source = f"from importlib.metadata import version as v; print(*map(v, {_PACKAGES!r}))"
    found = _run([str(command.parent / "python"), "-c", source]).split()
    return ", ".join(f"{name} {version}" for name, version in zip(_PACKAGES, found, strict=True))


def _run(command: list[str], name: str = "python") -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise ContenderFailed(f"{name} failed: {_last_line(error.stderr, str(error))}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContenderFailed(str(error)) from error
    return done.stdout


@contextmanager
def infinity_server(command: Path, model: Path, name: str, threads: int, folder: Path) -> Iterator[str]:
    """Start it, healthy when entered, ended when left; gives its /rerank as a load test names targets.

    `folder` takes its log and what it writes into its working directory.
    Raises: ContenderFailed if it does not get healthy.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
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
    while process.poll() is None and time.monotonic() < ends_s:
        # URLError is one, too.
        with suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    how = "took too long to start" if process.returncode is None else "ended while it started"
    raise ContenderFailed(f"Infinity {how}: {_last_line(log.read_text(errors='replace'), 'it said nothing')}")


def _last_line(text: str, otherwise: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), otherwise)


@contextmanager
def predicting(
    model: Path, calls: Sequence[Call], threads: int, precision: Literal["fp32", "bf16"] = "fp32"
) -> Iterator[Contender]:
    """Start the process, which is ended when the block is left; a pass is one `predict` with all pairs.

    The process times itself, without the way of the texts to it.
    """
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with child(
        "sentence-transformers", answer_pairs, str(model), threads, precision, **environment
    ) as process:

        def score() -> Scored:
            seconds, found = process.ask([(call.query, text) for call in calls for text in call.texts])
            left = iter(found)
            return Scored(seconds, len(found), tuple(tuple(islice(left, len(call.texts))) for call in calls))

        yield score


def answer_pairs(asked: Connection, folder: str, threads: int, precision: str) -> None:
    """Load the model on the CPU; answer each list of pairs with seconds and scores."""
    if not Path(folder).is_dir():
        # Said before packages are imported for seconds; a name would be looked up on the hub.
        sys.exit(f"{folder}: no such folder")
    # Imported here: the benchmark itself needs none of them.
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = CrossEncoder(folder, device="cpu", model_kwargs={"dtype": dtype})
    while True:
        pairs = asked.recv()
        started_s = time.perf_counter()
        scores = model.predict(pairs, show_progress_bar=False)
        asked.send((time.perf_counter() - started_s, scores.tolist()))
