"""Farrank's server with an export, against sentence-transformers, Infinity, and its own runtime alone."""

import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from farrank_bench.corpus_calls import encoder_inputs, make_calls
from farrank_bench.exporting import CrossEncoder, export_fast
from farrank_bench.offline import RuntimeAlone, longest_first
from farrank_bench.peers import (
    PREDICT,
    VERSION,
    infinity_command,
    infinity_server,
    infinity_versions,
    predicting,
)
from farrank_bench.report import Row
from farrank_bench.rounds import Contender, ContenderFailed, Rounds, Scores, measure_rounds
from farrank_bench.served import RANKER, answer_all, score_served, serving
from farrank_client import Client
from farrank_exporters.parity import MIN_TAU, MIN_WORST_TAU
from farrank_loadtest.workloads import Call
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.rank_correlation import kendall_tau
from farrank_rankers.ranker import Ranker
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement

CALLERS = 4
# As in the section on throughput: enough calls to fill the server, repeated so that the last, partly filled
# batches hardly count.
MANY_CALLERS, TIMES = 16, 6
FARRANK, ALONE, INFINITY = "Farrank", "its runtime alone", f"Infinity {VERSION}"
LOADED = f"Farrank, {MANY_CALLERS} callers"

# The ratio of the first contender's speed to the second's.
AIMS = {(FARRANK, PREDICT): 6.0, (FARRANK, INFINITY): 6.0, (LOADED, ALONE): 0.95}

# Contenders that compute the same in fp32 differ only by rounding.
SAME_IN_FP32 = 0.99
# A ranker that was trained: the scores of a random head lie closer together.
TRAINED = "embedded:maxp"


def against_peers(
    made: CrossEncoder,
    exported: Sequence[Row],
    size: tuple[int, int],
    rounds: int,
    threads: int,
    cache: Path,
    scratch: Path,
) -> list[Row]:
    """Serve the fastest export of the artifact, and let all contenders score the same pairs.

    `exported` has the exports' rows, `size` is a round's number of calls and of documents per call, `cache`
    keeps Infinity's environment, and `scratch` its log.
    """
    reader = made.ranker.reader
    calls = make_calls(reader, *size, seed=2, pairs=True)
    inputs = encoder_inputs(reader, calls)
    if len(inputs) != math.prod(size):
        raise AssertionError(f"{len(inputs)} pairs of {math.prod(size)} documents")
    contenders: dict[str, Contender] = {}
    absent = versions = ""
    with ExitStack() as stack:
        device = ("--device", "cpu", "--threads", str(threads))
        server = stack.enter_context(serving(made.artifact, *device))
        with Client(server.address) as client:
            served = client.rankers().rankers[0]
        contenders[FARRANK] = partial(score_served, server.address, RANKER, CALLERS, calls)
        contenders[LOADED] = partial(score_served, server.address, RANKER, MANY_CALLERS, calls * TIMES)
        placement = Placement("cpu", threads)
        alone = open_ranker_runtime(str(made.artifact), Overrides(), placement=placement).runtime
        runs = alone.capabilities()
        if (runs.runtime, runs.precision) != (served.runtime, served.precision):
            raise AssertionError(f"the server runs {served.runtime} {served.precision}, and alone {runs}")
        contenders[ALONE] = RuntimeAlone(alone, longest_first(inputs)).score
        contenders[PREDICT] = stack.enter_context(predicting(made.transformers, calls, threads))
        try:
            command = infinity_command(cache)
            versions = infinity_versions(command)
            started = infinity_server(command, made.transformers, RANKER, threads, scratch)
            contenders[INFINITY] = partial(score_served, stack.enter_context(started), RANKER, CALLERS, calls)
        except ContenderFailed as error:
            absent = str(error)
        found = measure_rounds(contenders, rounds)
    if FARRANK in found.failed:
        raise ContenderFailed(f"Farrank itself: {found.failed[FARRANK]}")
    if absent:
        found.failed[INFINITY] = absent
    lengths = sorted(each.tokens for each in inputs)
    return [
        *exported,
        Row("pairs in each round", f"{len(inputs)} of {lengths[0]} to {lengths[-1]} tokens"),
        Row("the server's runtime", served.runtime_reason),
        *speed_rows(found),
        *agreement_rows(found, made.ranker, calls, served.precision),
        *trained_agreement(scratch / "trained", calls, threads),
        *([Row("Infinity's environment", versions)] if versions else []),
    ]


def speed_rows(found: Rounds) -> list[Row]:
    """Return the speeds, and the ratios of Farrank's speed to the others'."""
    speeds = {
        FARRANK: f"documents/s through Farrank's server, {CALLERS} callers",
        LOADED: f"documents/s through Farrank's server, {MANY_CALLERS} callers",
        ALONE: "documents/s, its runtime alone (sorted by length)",
        PREDICT: f"documents/s, {PREDICT} (torch fp32, batches of 32)",
        INFINITY: f"documents/s through {INFINITY} (torch engine), {CALLERS} callers",
    }
    return [
        *(found.speed_row(name, what) for name, what in speeds.items()),
        *(
            found.ratio_row(ours, name, f"{ours}, over {name}", limit, ".2f")
            for (ours, name), limit in AIMS.items()
        ),
    ]


def agreement_rows(found: Rounds, ranker: Ranker, calls: Sequence[Call], precision: str) -> list[Row]:
    """Compare all contenders' rankings with those of Farrank's ranker in torch, fp32: they must agree."""
    expected = in_torch(ranker, calls)
    rows = []
    if FARRANK in found.scores:
        rows.append(tau_row(f"{FARRANK}, {precision}", taus(expected, found.scores[FARRANK]), precision))
    peers = [name for name in (PREDICT, INFINITY) if name in found.scores]
    return [*rows, *(tau_row(name, taus(expected, found.scores[name]), "fp32") for name in peers)]


def trained_agreement(folder: Path, calls: Sequence[Call], threads: int) -> list[Row]:
    """Serve the fastest export of a trained ranker, and compare its rankings with torch in fp32.

    It reads the documents whole, in all their chunks. `folder` takes the artifact.
    """
    ranker = open_ranker(TRAINED)
    save_ranker(ranker, folder)
    export_fast(ranker, folder, unasked=True)
    with serving(folder, "--device", "cpu", "--threads", str(threads)) as server:
        with Client(server.address) as client:
            precision = client.rankers().rankers[0].precision
        _, _, scores = answer_all(server.address, calls, CALLERS, ranker=RANKER, depth="all")
    by_call = taus(in_torch(ranker, calls), scores)
    return [tau_row(f"{FARRANK}, {TRAINED}, {precision}", by_call, precision)]


def in_torch(ranker: Ranker, calls: Sequence[Call]) -> Scores:
    """Score calls with the ranker itself, without a server."""
    return tuple(
        tuple(each.score for each in ranker.score(call.query, call.texts, batch_size=4)) for call in calls
    )


def tau_row(name: str, by_call: Sequence[float], precision: str) -> Row:
    """Report Kendall's taus of calls; the worst call has a limit of its own if the precision is rounded."""
    least = least_tau(precision)
    worst = MIN_WORST_TAU if least < SAME_IN_FP32 else least
    mean, found = statistics.mean(by_call), min(by_call)
    what = f"Kendall's tau with torch fp32, mean of {len(by_call)} calls (the worst): {name}"
    reached = mean >= least and found >= worst
    return Row(what, f"{mean:.4f} ({found:.4f})", f"at least {least:g} ({worst:g})", reached)


def least_tau(precision: str) -> float:
    """Return the bound of a precision as a runtime names it: int8+bf16 is int8 with other steps in bf16."""
    bounds = {str(name): tau for name, tau in MIN_TAU.items()}
    return min(bounds.get(part, SAME_IN_FP32) for part in precision.split("+"))


def taus(expected: Scores, scores: Scores) -> list[float]:
    """Return Kendall's tau of each expected call. Further calls are ignored."""
    return [
        kendall_tau(np.array(wanted), np.array(got))
        for wanted, got in zip(expected, scores[: len(expected)], strict=True)
    ]
