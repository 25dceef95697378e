"""The kernel beside other libraries': the same vectors, in turns, in one run."""

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_bench.report import Row, below
from farrank_bench.rounds import Contender, ContenderFailed, PassResult, measure_rounds, whole
from farrank_rankers.family import MaxSimOptions
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.maxsim import score_token_vectors
from farrank_runtimes.runtime import CodecName
from farrank_runtimes.token_codecs import CodedVectors, fit

DOCUMENTS, TOKENS, WIDTH, QUERY, WINDOW = 100, 1431, 128, 32, 180
WITHIN_MS = 5.0
# These need nothing that is not installed here.
_BESIDE = ("pylate==1.6.0", "fast-maxsim==0.2.0", "maxsim-cpu==0.1.0")
# It needs a torch of its own.
_FAST_PLAID = "fast-plaid==1.7.0.2110"
_INSTALL_TIMEOUT_S = 1800.0


def compare_kernels(rounds: int, cache: Path, folder: Path) -> list[Row]:
    """Let every kernel score all documents in each round. Raises: PartlyFailed naming those that failed."""
    torch.set_num_threads(usable_cores())
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((DOCUMENTS * TOKENS + QUERY, WIDTH), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query, documents = vectors[:QUERY].copy(), vectors[QUERY:].reshape(DOCUMENTS, TOKENS, WIDTH)
    with _packages(cache / "maxsim-peers"), _fast_plaid(cache, folder, query, documents) as fast_plaid:
        contenders: dict[str, Contender] = {
            **{
                f"Farrank, {name or 'fp32'}": _ours(name, query, documents)
                for name in (*get_args(CodecName), None)
            },
            **{name: _timed(run) for name, run in _theirs(query, documents).items()},
            "fast-plaid 1.7.0's search of these documents, 4 bits": fast_plaid,
        }
        found = measure_rounds(contenders, rounds)
    rows = []
    for name, speeds in found.speeds.items():
        ms = [1e3 / each for each in speeds]
        measured = below(f"{name}, ms", ms, WITHIN_MS, ".1f")
        rows.append(measured if "int8" in name else Row(measured.what, measured.measured))
    return whole(rows, found)


def _ours(name: CodecName | None, query: NDArray[np.float32], documents: NDArray[np.float32]) -> Contender:
    codec = None if name is None else fit(name, documents.reshape(-1, WIDTH)[:40_000])
    ends = np.append(np.arange(WINDOW, TOKENS, WINDOW), TOKENS)
    coded = [
        CodedVectors(torch.from_numpy(each if codec is None else codec.encode(each)), ends, codec)
        for each in documents
    ]
    queries = [torch.from_numpy(query)] * DOCUMENTS
    return _timed(lambda: score_token_vectors(coded, queries, MaxSimOptions()).scores)


def _theirs(query: NDArray[np.float32], documents: NDArray[np.float32]) -> Mapping[str, Callable[[], Any]]:
    """List the kernels of installed libraries. They are imported at the first call."""
    asked, read = torch.from_numpy(query), torch.from_numpy(documents)
    each = list(read)

    def of(module: str, name: str) -> Any:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise ContenderFailed(str(error)) from error

    return {
        "sentence-transformers' maxsim, fp32": lambda: of("sentence_transformers.util.similarity", "maxsim")(
            [asked], each
        ),
        "PyLate 1.6.0's colbert_scores, fp32": lambda: of("pylate.scores", "colbert_scores")(
            asked[None], read
        ),
        "fast-maxsim 0.2.0, fp32": lambda: of("fast_maxsim", "maxsim_scores")(query, documents),
        "maxsim-cpu 0.1.0, fp32": lambda: of("maxsim_cpu", "maxsim_scores")(query, documents),
        "numpy, fp32": lambda: [(query @ document.T).max(axis=1).sum() for document in documents],
    }


def _timed(run: Callable[[], Any]) -> Contender:
    def score() -> PassResult:
        started_s = time.perf_counter()
        run()
        return PassResult(time.perf_counter() - started_s, 1)

    return score


@contextmanager
def _packages(folder: Path) -> Iterator[None]:
    """Make packages importable that are installed apart, so that nothing else depends on them."""
    ready = folder / ".ready"
    if not ready.exists():
        _pip("--target", str(folder), "--no-deps", *_BESIDE)
        ready.touch()
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _fast_plaid(
    cache: Path, folder: Path, query: NDArray[np.float32], documents: NDArray[np.float32]
) -> Iterator[Contender]:
    """Run fast-plaid in its own environment. A pass is a search that scores all documents."""
    environment = cache / _FAST_PLAID
    python, ready = (environment / "bin" / "python").absolute(), environment / ".ready"
    if not ready.exists():
        print(f"  installing {_FAST_PLAID} into {environment}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment)])
        _pip("--python", str(python), _FAST_PLAID)
        ready.touch()
    for name, array in (("query", query), ("documents", documents)):
        np.save(folder / f"{name}.npy", array)
    script = Path(__file__).with_name("fast_plaid_peer.py")
    command = [str(python), str(script), str(folder), str(usable_cores())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield partial(_asked, process)
        finally:
            process.kill()


def _asked(process: "subprocess.Popen[str]") -> PassResult:
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
