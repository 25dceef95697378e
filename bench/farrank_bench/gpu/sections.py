"""The sections by name: each stands alone, is bounded in time, and may fail without the others."""

import gc
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import torch

from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.encoding import PartlyFailed
from farrank_bench.gpu.forms import FORMS
from farrank_bench.gpu.forms import MODELS as FORMED
from farrank_bench.gpu.rankings import trained, untrained
from farrank_bench.gpu.serving import AIMS, LATENCIES, saturation
from farrank_bench.gpu.speeds import MODELS as SPED
from farrank_bench.gpu.speeds import OF_FULL_DOCUMENTS, first_passages
from farrank_bench.report import Row, not_measured, spread

Measure = Callable[[Bench], list[Row]]


def ceilings(bench: Bench) -> list[Row]:
    """Say what the device itself can do, as measured."""
    found = bench.ceilings
    tera = [flops / 1e12 for flops in found.flops_per_s]
    giga = [nbytes / 1e9 for nbytes in found.bytes_per_s]
    return [
        Row(f"matrix product in bf16, {found.side} × {found.side}, TFLOP/s: the peak", spread(tera, ".4g")),
        Row(f"copy of {found.nbytes / 2**20:g} MiB, read and written, GB/s", spread(giga, ".4g")),
    ]


# A section's parts by title: what is measured on models apart fails apart.
SECTIONS: Mapping[str, Mapping[str, Measure]] = {
    "ceilings": {"The device's own ceilings": ceilings},
    "speed": {
        "Speed: BERT-base FirstP": first_passages,
        **{f"Speed: {SPED[name]}": measure for name, measure in OF_FULL_DOCUMENTS.items()},
    },
    "latency": {f"Latency: {AIMS[name].name}": measure for name, measure in LATENCIES.items()},
    "saturation": {"Saturation": saturation},
    "forms": {f"Forms: {FORMED[name]}": measure for name, measure in FORMS.items()},
    "rankings": {"Rankings: trained weights": trained, "Rankings: random weights": untrained},
}


def measure_sections(names: Sequence[str], bench: Bench) -> tuple[dict[str, list[Row]], list[str]]:
    """Measure sections; give rows by title, and the titles of those that failed."""
    found: dict[str, list[Row]] = {}
    failed: list[str] = []
    for title, measure in (part for name in names for part in SECTIONS[name].items()):
        print(title, flush=True)
        try:
            with bounded(bench.extent.limit_s):
                found[title] = measure(bench)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            rows = error.rows if isinstance(error, PartlyFailed) else []
            found[title] = [not_measured("all or some", f"{type(error).__name__}: {error}"), *rows]
            failed.append(title)
        let_go()
    return found, failed


def let_go() -> None:
    """Give back the device's memory, so that a server finds room beside this process."""
    gc.collect()
    # Without a GPU this does nothing.
    torch.cuda.empty_cache()


@contextmanager
def bounded(limit_s: float) -> Iterator[None]:
    """Interrupt what takes longer, as soon as it comes back to Python; for the main thread alone.

    Raises: TimeoutError.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
