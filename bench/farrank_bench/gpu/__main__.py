"""Measure packed rankers on a CUDA device: `make bench-gpu`, or `make bench-gpu BENCH_ARGS=--quick`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from farrank_bench.gpu.bench import FULL, QUICK, TINY, DeviceBench, device_line
from farrank_bench.gpu.rankings import MIN_TAU, agreement
from farrank_bench.gpu.served_models import AIMS_MS, latency_of, saturation
from farrank_bench.gpu.speeds import first_passages, forms_of, full_documents_of
from farrank_bench.report import Command, Heading, Row
from farrank_cli.flags import at_least
from farrank_rankers.files.model_files import EMBEDDED
from farrank_runtimes.devices import choose_device
from farrank_runtimes.runtime import DeviceAbsent

PACKAGES = ("farrank", "torch", "transformers", "flash_attn", "tokenizers", "numpy", "grpcio")
NOTES = (
    "the papers' models with random weights, encoder in bf16, aggregator in fp32; medians of {repeats} runs "
    "(smallest to largest), latencies of {calls} calls; ratios computed round by round; shares are of the "
    "matrix product measured in the same run"
)
TITLE = "Packed rankers on a GPU"
NO_GPU = "A trial of the benchmark on a CPU"
NOT_A_GPU = "**This is a trial run on a CPU: no figure here is a GPU's.**"
TINY_MODELS = "**The models are tiny: no figure here says how fast anything is.**"

NO_DEVICE = 2

# Each section's parts by title. Parts with different models can fail independently.
SECTIONS: Mapping[str, dict[str, Callable[[DeviceBench], list[Row]]]] = {
    "ceilings": {"The device's own ceilings": DeviceBench.ceilings},
    "speed": {
        "Speed: BERT-base FirstP": first_passages,
        "Speed: PARADE Attn": partial(full_documents_of, "parade-attn-bert"),
        "Speed: JINA LongP": partial(full_documents_of, "longp-jina"),
        "Speed: Longformer LongP": partial(full_documents_of, "longp-longformer"),
    },
    "latency": {f"Latency: {name}": partial(latency_of, name) for name in AIMS_MS},
    "saturation": {"Saturation": saturation},
    "forms": {
        "Forms: BERT": partial(forms_of, "firstp-bert"),
        "Forms: DeBERTa": partial(forms_of, "firstp-deberta"),
        "Forms: Longformer": partial(forms_of, "longp-longformer"),
        "Forms: BigBird": partial(forms_of, "longp-bigbird"),
    },
    "rankings": {
        "Rankings: trained weights": partial(agreement, EMBEDDED, MIN_TAU),
        "Rankings: random weights": partial(agreement, "firstp-bert", None),
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested sections and print the report.

    Returns 0; 1 if a section failed; 2 if there is no device; 130 if interrupted.
    """
    command = Command("farrank_bench.gpu", __doc__)
    command.sections(SECTIONS, list(SECTIONS))
    add = command.options.add_argument
    add("--repeats", type=at_least(1), help="runs of each measurement, default 5; the median counts")
    add("--quick", action="store_true", help="one short run of everything: a smoke test")
    add("--device", default="cuda:0", help="the device to measure (%(default)s)")
    add(
        "--tiny",
        action="store_true",
        help="tiny models and documents: a trial run, also on a CPU",
    )
    options = command.parse(arguments)
    extent = TINY if options.tiny else QUICK if options.quick else FULL
    if options.repeats is not None:
        extent = replace(extent, repeats=options.repeats)
    try:
        device = choose_device(options.device)
    except DeviceAbsent as error:
        print(f"bench-gpu: {error}", file=sys.stderr)
        return NO_DEVICE
    bench = DeviceBench(device, extent, options.tiny)
    parts = [part for name in options.sections for part in SECTIONS[name].items()]
    return command.report(
        heading(bench), [(title, partial(bench.measure, part)) for title, part in parts], options.out
    )


def heading(bench: DeviceBench) -> Heading:
    """Return the report's head. Aims hold only for models of full size on a GPU."""
    on_gpu = bench.device.type == "cuda"
    warnings = [*([] if on_gpu else [NOT_A_GPU]), *([TINY_MODELS] if bench.tiny else [])]
    notes = NOTES.format(repeats=bench.extent.repeats, calls=bench.extent.calls)
    return Heading(TITLE if on_gpu else NO_GPU, notes, PACKAGES, warnings, device_line(bench.device))


if __name__ == "__main__":
    sys.exit(main())
