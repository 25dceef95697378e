"""The report: hardware, versions, command, and every section's figures."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata

import torch

from farrank_bench.gpu.bench import Bench
from farrank_bench.report import Row, machine, tables

PACKAGES = ("farrank", "torch", "transformers", "flash_attn", "tokenizers", "numpy", "grpcio")
NOTES = (
    "the papers' models with random weights, encoder in bf16, aggregator in fp32; medians of {repeats} runs "
    "(smallest to largest), of latencies of {calls} calls; ratios taken round by round; shares are of the "
    "matrix product measured in the same run"
)
TITLE = "Packed rankers on a GPU"
NO_GPU = "The benchmark tried out on a CPU"
WARNING = "**This ran on a CPU to show that it runs: no figure here is a GPU's.**"
TINY = "**Models are tiny: no figure here says how fast anything is.**"


def as_markdown(bench: Bench, sections: Mapping[str, Sequence[Row]], command: str) -> str:
    """Write the report of `make bench-gpu`; aims are a GPU's, of models at full size."""
    on_gpu = bench.device.type == "cuda"
    if bench.tiny or not on_gpu:
        sections = {
            title: [replace(row, aim="", reached=None) for row in rows] for title, rows in sections.items()
        }
    lines = [
        f"# {TITLE if on_gpu else NO_GPU}",
        "",
        *([] if on_gpu else [WARNING, ""]),
        *([TINY, ""] if bench.tiny else []),
        f"- date: {datetime.now(UTC):%Y-%m-%d}",
        f"- device: {device_line(bench.device)}",
        f"- machine: {machine()}; Python {platform.python_version()}",
        f"- versions: {', '.join(f'{name} {version_of(name)}' for name in PACKAGES)}",
        f"- command: `{command}`",
        f"- {NOTES.format(repeats=bench.extent.repeats, calls=bench.extent.calls)}",
        *tables(sections),
    ]
    return "\n".join(lines) + "\n"


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


def version_of(package: str) -> str:
    """Give a package's version, or say that it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
