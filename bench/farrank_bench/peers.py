"""The peers: sentence-transformers in its own process, and Infinity in its own process and environment."""

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

from farrank_bench.rounds import Contender, ContenderFailed, PassResult, child
from farrank_loadtest.workloads import Call

PREDICT = "sentence-transformers' CrossEncoder.predict"
VERSION = "0.0.78"
CONSTRAINTS = Path(__file__).parents[1] / "infinity-constraints.txt"
NAMED_BY = "FARRANK_INFINITY"
INSTALL_TIMEOUT_S = 1200.0
START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0

# The packages that Infinity's speed depends on.
_PACKAGES = ("infinity_emb", "torch", "transformers", "sentence-transformers", "tokenizers")


def infinity_command(cache: Path) -> Path:
    """Return Infinity's program: the one that FARRANK_INFINITY names, or that of an environment in `cache`.

    Raises: ContenderFailed if there is none and it cannot be installed.
    """
    named = os.environ.get(NAMED_BY)
    if named:
        return Path(named).absolute()
    requirement = f"infinity-emb[torch,server]=={VERSION}"
    python = peer_python(cache, f"infinity-{VERSION}", requirement, "--constraint", str(CONSTRAINTS))
    return python.with_name("infinity_emb")


def peer_python(cache: Path, name: str, requirement: str, *flags: str) -> Path:
    """Return the interpreter of a peer's own environment in `cache`, into which pip has installed it.

    Raises: ContenderFailed if it cannot be installed.
    """
    folder = (cache / name).absolute()
    ready, python = folder / ".ready", folder / "bin" / "python"
    if not ready.exists():
        print(f"  installing {requirement} into {folder}", flush=True)
        # This environment's pip installs into the new one: installing another pip takes longer than the rest.
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", *flags, requirement], "pip")
        ready.touch()
    return python


def infinity_versions(command: Path) -> str:
    """List the versions of the packages that Infinity's speed depends on.

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
    """Run Infinity, healthy, until the block is left. Yields its /rerank as a load test names targets.

    `folder` is its working directory and takes its log.
    Raises: ContenderFailed if it does not become healthy.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    arguments = [str(command), "v2", "--model-id", str(model), "--served-model-name", name]
    arguments += ["--engine", "torch", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    # The warm-up only times batches for the log. The disk cache would answer the second run of the calls.
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
        # URLError is an OSError.
        with suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    how = "took too long to start" if process.returncode is None else "ended while it started"
    raise ContenderFailed(f"Infinity {how}: {_last_line(log.read_text(errors='replace'), 'no output')}")


def _last_line(text: str, otherwise: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), otherwise)


@contextmanager
def predicting(
    model: Path, calls: Sequence[Call], threads: int, precision: Literal["fp32", "bf16"] = "fp32"
) -> Iterator[Contender]:
    """Run the process until the block is left. A pass is one `predict` with all pairs.

    The process times itself, so that sending it the texts does not count.
    """
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with child(
        "sentence-transformers", answer_pairs, str(model), threads, precision, **environment
    ) as process:

        def score() -> PassResult:
            seconds, found = process.ask([(call.query, text) for call in calls for text in call.texts])
            left = iter(found)
            return PassResult(
                seconds, len(found), tuple(tuple(islice(left, len(call.texts))) for call in calls)
            )

        yield score


def answer_pairs(asked: Connection, folder: str, threads: int, precision: str) -> None:
    """Load the model on the CPU; answer each list of pairs with seconds and scores."""
    if not Path(folder).is_dir():
        # Checked before the imports, which take seconds. CrossEncoder would look for the name on the hub.
        sys.exit(f"{folder}: no such folder")
    # Imported here, because the benchmark itself does not need them.
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
