"""The kernel beside other libraries': the same vectors, in turns, each in a process of its own.

In one process they disturb each other: the threads that one library starts wait busily while the next one
computes.
"""

import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_bench.report import Row, below
from farrank_bench.rounds import (
    Child,
    Contender,
    ContenderFailed,
    PassResult,
    child,
    measure_rounds,
    whole,
)
from farrank_rankers.family import MaxSimOptions
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.maxsim import score_token_vectors
from farrank_runtimes.runtime import CodecName
from farrank_runtimes.token_codecs import CodedVectors, fit

DOCUMENTS, TOKENS, WIDTH, QUERY, WINDOW = 100, 1431, 128, 32, 180
WITHIN_MS = 5.0
# Passes of a turn, whose median counts. Before the first one the last contender's threads fall asleep.
PASSES, PAUSE_S = 5, 0.05
# These need nothing that is not installed here.
_BESIDE = ("pylate==1.6.0", "fast-maxsim==0.2.0", "maxsim-cpu==0.1.0")
# It needs a torch of its own.
_FAST_PLAID = "fast-plaid==1.7.0.2110"
_INSTALL_TIMEOUT_S = 1800.0

Vectors = NDArray[np.float32]
Run = Callable[[], Any]


def compare_kernels(rounds: int, cache: Path, folder: Path) -> list[Row]:
    """Let every kernel score all documents in each round. Raises: PartlyFailed naming those that failed."""
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((DOCUMENTS * TOKENS + QUERY, WIDTH), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(folder / "query.npy", vectors[:QUERY])
    np.save(folder / "documents.npy", vectors[QUERY:].reshape(DOCUMENTS, TOKENS, WIDTH))
    packages = _packages(cache / "maxsim-peers")
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name in KERNELS:
            environment = {} if name.startswith("Farrank") else _THEIR_ENVIRONMENT
            process = child(name, answer_passes, name, folder, packages, **environment)
            contenders[name] = partial(_asked, stack.enter_context(process))
        contenders["fast-plaid 1.7.0's search of these documents, 4 bits"] = stack.enter_context(
            _fast_plaid(cache, folder)
        )
        found = measure_rounds(contenders, rounds)
    rows = []
    for name, speeds in found.speeds.items():
        ms = [1e3 / each for each in speeds]
        measured = below(f"{name}, ms", ms, WITHIN_MS, ".1f")
        rows.append(measured if "int8" in name else Row(measured.what, measured.measured))
    return whole(rows, found)


def answer_passes(connection: Connection, name: str, folder: Path, packages: Path) -> None:
    """Load one kernel. For each message let it score all documents; send the seconds, or why it failed."""
    sys.path.append(str(packages))
    torch.set_num_threads(usable_cores())
    run = KERNELS[name](np.load(folder / "query.npy"), np.load(folder / "documents.npy"))
    while True:
        connection.recv()
        time.sleep(PAUSE_S)
        try:
            connection.send(statistics.median(_timed(run) for _ in range(PASSES)))
        except ImportError as error:
            connection.send(str(error))


def _timed(run: Run) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


def _asked(process: Child) -> PassResult:
    answer = process.ask()
    if isinstance(answer, str):
        raise ContenderFailed(answer)
    return PassResult(answer, 1)


def _ours(name: CodecName | None, query: Vectors, documents: Vectors) -> Run:
    codec = None if name is None else fit(name, documents.reshape(-1, WIDTH)[:40_000])
    ends = np.append(np.arange(WINDOW, TOKENS, WINDOW), TOKENS)
    coded = [
        CodedVectors(torch.from_numpy(each if codec is None else codec.encode(each)), ends, codec)
        for each in documents
    ]
    queries = [torch.from_numpy(query)] * DOCUMENTS
    return lambda: score_token_vectors(coded, queries, MaxSimOptions()).scores


def _imported(module: str, name: str, given: Callable[[Vectors, Vectors], Sequence[Any]]) -> "Kernel":
    """Make a kernel of a function of an installed library, imported at its first call."""

    def kernel(query: Vectors, documents: Vectors) -> Run:
        arguments = given(query, documents)
        return lambda: getattr(importlib.import_module(module), name)(*arguments)

    return kernel


def _numpy(query: Vectors, documents: Vectors) -> Run:
    return lambda: [(query @ document.T).max(axis=1).sum() for document in documents]


# Farrank's processes have OpenMP's threads sleep at once while they wait. Others' have GNU's default.
_THEIR_ENVIRONMENT = {"GOMP_SPINCOUNT": "300000"}

# They take the query's vectors and the documents'. Shapes: (Q, K), (D, T, K).
Kernel = Callable[[Vectors, Vectors], Run]

KERNELS: Mapping[str, Kernel] = {
    **{f"Farrank, {name or 'fp32'}": partial(_ours, name) for name in (*get_args(CodecName), None)},
    "sentence-transformers' maxsim, fp32": _imported(
        "sentence_transformers.util.similarity",
        "maxsim",
        lambda query, documents: ([torch.from_numpy(query)], list(torch.from_numpy(documents))),
    ),
    "PyLate 1.6.0's colbert_scores, fp32": _imported(
        "pylate.scores",
        "colbert_scores",
        lambda query, documents: (torch.from_numpy(query)[None], torch.from_numpy(documents)),
    ),
    "fast-maxsim 0.2.0, fp32": _imported("fast_maxsim", "maxsim_scores", lambda *vectors: vectors),
    "maxsim-cpu 0.1.0, fp32": _imported("maxsim_cpu", "maxsim_scores", lambda *vectors: vectors),
    "numpy, fp32": _numpy,
}


def _packages(folder: Path) -> Path:
    """Install packages apart, so that nothing else depends on them."""
    ready = folder / ".ready"
    if not ready.exists():
        _pip("--target", str(folder), "--no-deps", *_BESIDE)
        ready.touch()
    return folder.absolute()


@contextmanager
def _fast_plaid(cache: Path, folder: Path) -> Iterator[Contender]:
    """Run fast-plaid in its own environment. A pass is a search that scores all documents."""
    environment = cache / _FAST_PLAID
    python, ready = (environment / "bin" / "python").absolute(), environment / ".ready"
    if not ready.exists():
        print(f"  installing {_FAST_PLAID} into {environment}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment)])
        _pip("--python", str(python), _FAST_PLAID)
        ready.touch()
    script = Path(__file__).with_name("fast_plaid_peer.py")
    command = [str(python), str(script), str(folder), str(usable_cores())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield partial(_searched, process)
        finally:
            process.kill()


def _searched(process: "subprocess.Popen[str]") -> PassResult:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
    except OSError as error:
        raise ContenderFailed("fast-plaid's process ended; its output is above") from error
    for line in process.stdout:
        if line.startswith("seconds "):
            return PassResult(float(line.split()[1]), 1)
    raise ContenderFailed("fast-plaid's process ended; its output is above")


def _pip(*arguments: str) -> None:
    where = [each for each in arguments[:2] if arguments[0] == "--python"]
    rest = arguments[len(where) :]
    _run([sys.executable, "-m", "pip", *where, "install", "--quiet", "--disable-pip-version-check", *rest])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, timeout=_INSTALL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ContenderFailed(str(error)) from error
