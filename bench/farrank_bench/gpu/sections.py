"""The sections by name: each stands alone, is bounded in time, and may fail without the others."""

import gc
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.encoding import PartlyFailed
from farrank_bench.gpu.rankings import trained, untrained
from farrank_bench.gpu.served_models import AIMS, LATENCIES, saturation
from farrank_bench.gpu.speeds import COMPILED_MODELS, FORMS, MODELS, OF_FULL_DOCUMENTS, first_passages
from farrank_bench.report import Row, heading, not_measured, spread, tables

PACKAGES = ("farrank", "torch", "transformers", "flash_attn", "tokenizers", "numpy", "grpcio")
NOTES = (
    "the papers' models with random weights, encoder in bf16, aggregator in fp32; medians of {repeats} runs "
    "(smallest to largest), of latencies of {calls} calls; ratios taken round by round; shares are of the "
    "matrix product measured in the same run"
)
TITLE = "Packed rankers on a GPU"
NO_GPU = "The benchmark tried out on a CPU"
NOT_A_GPU = "**This ran on a CPU to show that it runs: no figure here is a GPU's.**"
TINY_MODELS = "**Models are tiny: no figure here says how fast anything is.**"

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
        **{f"Speed: {MODELS[name]}": measure for name, measure in OF_FULL_DOCUMENTS.items()},
    },
    "latency": {f"Latency: {AIMS[name].name}": measure for name, measure in LATENCIES.items()},
    "saturation": {"Saturation": saturation},
    "forms": {f"Forms: {COMPILED_MODELS[name]}": measure for name, measure in FORMS.items()},
    "rankings": {"Rankings: trained weights": trained, "Rankings: random weights": untrained},
}


def measure_sections(names: Sequence[str], bench: Bench) -> tuple[dict[str, list[Row]], list[str]]:
    """Measure sections; give rows by title, and the titles of those that failed."""
    found: dict[str, list[Row]] = {}
    failed: list[str] = []
    for title, measure in (part for name in names for part in SECTIONS[name].items()):
        print(title, flush=True)
        try:
            bench.limit.begin(bench.extent.limit_s)
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


def write_report(bench: Bench, sections: Mapping[str, Sequence[Row]], command: str) -> str:
    """Write the report of `make bench-gpu`; aims are a GPU's, of models at full size."""
    on_gpu = bench.device.type == "cuda"
    if bench.tiny or not on_gpu:
        sections = {
            title: [replace(row, aim="", reached=None) for row in rows] for title, rows in sections.items()
        }
    warnings = [*([] if on_gpu else [NOT_A_GPU]), *([TINY_MODELS] if bench.tiny else [])]
    notes = NOTES.format(repeats=bench.extent.repeats, calls=bench.extent.calls)
    title, device = TITLE if on_gpu else NO_GPU, device_line(bench.device)
    report = heading(title, command, notes, packages=PACKAGES, warnings=warnings, device=device)
    return report + tables(sections)


def device_line(device: torch.device) -> str:
    """Name a device, its driver and the CUDA that torch was built for."""
    if device.type != "cuda":
        return f"{device}, no GPU"
    found = torch.cuda.get_device_properties(device)
    memory, cuda = found.total_memory / 2**30, torch.version.cuda
    return f"{found.name}, {memory:.0f} GiB; driver {driver()}; CUDA {cuda}"


def driver() -> str:
    """Ask nvidia-smi for the driver's version; "unknown" without it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.partition("\n")[0].strip() or "unknown"
