"""`farrank export`: write a ranker's graphs for other runtimes, and measure how close their scores are."""

import argparse
import itertools
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import flag
from farrank_exporters.optimum_here import (
    AskedExporter,
    Level,
    PlainPrecision,
    check_installed,
    optimum_flag,
)
from farrank_rankers.errors import RankerError
from farrank_rankers.exports.manifest import ExportFormat, ExportParity, ExportPrecision

if TYPE_CHECKING:
    from farrank_exporters.texts import SampleTexts

_LAYOUTS = ("farrank", "optimum")

_INT8 = (
    "int8 takes minutes, and only the result shows whether the rankings survive: an export with too low a "
    "Kendall's tau is not written, unless --allow-drift is given"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "ranker", metavar="RANKER", help="an artifact, a folder, a hub name, 'embedded' or 'embedded:NAME'"
    )
    add = partial(flag, parser)
    add("--format", "format of the export", choices=get_args(ExportFormat), default="onnx")
    add("--precision", "precision of the export", choices=get_args(ExportPrecision), default="fp32")
    add("--layout", "a Farrank artifact, or a folder for optimum", choices=_LAYOUTS, default="farrank")
    add("--exporter", "library that traces the model", choices=get_args(AskedExporter), default="auto")
    add("--optimize", "with --layout optimum: optimise the graph for ONNX Runtime", choices=get_args(Level))
    add("--out FOLDER", "folder for the ranker's artifact, or optimum's folder, with the export", Path)
    meaning = 'texts to measure and calibrate with, one {"text": …} per line (Python\'s documentation)'
    add("--texts JSONL", meaning, Path)
    add("--allow-drift", "keep an export whose scores are beyond their bound, and record it in its manifest")
    add("--force", "replace an existing export")
    add("--download", "fetch files from the hub that are not in its cache")


def run(args: argparse.Namespace) -> int:
    """Export the ranker, and print how close the export's scores are.

    Raises: CommandError if it cannot be exported, or its scores are beyond their bound.
    """
    with told_in_a_line(RankerError):  # before torch is imported, which takes seconds
        plain = args.layout == "optimum"
        needs_optimum = optimum_flag(args.precision, args.optimize) if plain else None
        if needs_optimum is None and args.exporter == "optimum":
            needs_optimum = "--exporter optimum"
        if needs_optimum is not None:
            check_installed(needs_optimum)
    if plain:
        return _export_for_optimum(args)
    if args.optimize is not None:
        raise CommandError(
            f"--optimize is {args.optimize}; it needs --layout optimum: runtimes optimise our own graphs "
            "when they load them"
        )
    from farrank_cli.exporting import steps_shown
    from farrank_exporters.export import artifact_of, export_ranker

    with told_in_a_line(RankerError, file=args.out or args.ranker):
        measured, calibration = _texts(args.texts)
        with (
            steps_shown() as progress,
            artifact_of(args.ranker, args.out, download=args.download) as (ranker, artifact),
        ):
            if args.precision == "int8" and not args.allow_drift:
                print(_INT8, file=sys.stderr)
            export = export_ranker(
                ranker,
                artifact,
                args.format,
                args.precision,
                measured=measured,
                calibration=calibration,
                replace_existing=args.force,
                allow_drift=args.allow_drift,
                exporter=args.exporter,
                progress=progress,
            )
    folder = (args.out or artifact) / "exports" / export.folder.name
    print(f"{folder}: {args.format} {args.precision}, version {ranker.version}")
    for parity in export.manifest.parity:
        drifts = parity.runtime in export.manifest.drifting
        print(_sentence(parity) + ("; BEYOND ITS BOUND, kept by --allow-drift" if drifts else ""))
    for quantized in export.manifest.quantized:
        print(quantized)
    for refused in export.manifest.refused:
        figures = f"; {_sentence(refused.parity)}" if refused.parity else ""
        print(f"{refused.runtime} will not serve it: {refused.reason}{figures}")
    return DONE


def _texts(file: Path | None) -> "tuple[SampleTexts, SampleTexts]":
    """Read the texts to measure and to calibrate with."""
    from farrank_exporters.texts import divide, python_documentation, read_texts

    texts = python_documentation() if file is None else read_texts(file)
    return divide(texts, str(file or "Python's documentation"))


def _export_for_optimum(args: argparse.Namespace) -> int:
    precisions = get_args(PlainPrecision)
    for name, allowed in (("format", ("onnx",)), ("precision", precisions)):
        if (found := getattr(args, name)) not in allowed:
            raise CommandError(
                f"--{name} is {found}; with --layout optimum it must be {' or '.join(allowed)}"
            )
    from farrank_cli.exporting import steps_shown
    from farrank_exporters.optimum_layout import export_layout

    with told_in_a_line(RankerError, file=args.out or args.ranker), steps_shown() as progress:
        counter = itertools.count()
        exported = export_layout(
            args.ranker,
            args.out,
            args.precision,
            _texts(args.texts)[0],
            exporter=args.exporter,
            level=args.optimize,
            replace_existing=args.force,
            allow_drift=args.allow_drift,
            progress=lambda text: progress(text, next(counter), 0),
            download=args.download,
        )
    print(
        f"{exported.graph}: {exported.precision}, traced by {exported.exporter}, version {exported.version}"
    )
    # Runtimes may also compute in other precisions; their reports are kept with the graph.
    for each in (each for each in exported.measured if each.precision == exported.precision):
        figures = _sentence(each.parity) if each.parity else f"{each.runtime} in {each.precision}"
        print(figures + ("" if each.beyond is None else "; BEYOND ITS BOUND"))
    return DONE


def _sentence(parity: ExportParity) -> str:
    return (
        f"{parity.runtime} on {parity.device} in {parity.computed_in}: {parity.queries} queries × "
        f"{parity.documents} documents, scores differ by {parity.max_difference:.2g} at most and "
        f"{parity.mean_difference:.2g} on average (spread {parity.spread:.2g}), "
        f"Kendall's tau {parity.kendall_tau:.4f} (worst query {parity.worst_tau:.4f}), "
        f"top-10 overlap {parity.top10_overlap:.3f}, own nDCG@10 {parity.ndcg10:.4f}; bound: {parity.bound}"
    )
