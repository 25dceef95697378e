"""`farrank export`: a ranker's graphs for other runtimes, with a report of how close they come to it."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import get_args

from farrank_cli.exit_codes import DONE, told_in_a_line
from farrank_cli.exporting import steps_shown
from farrank_cli.flags import flag
from farrank_exporters.export import artifact_of, export_ranker
from farrank_exporters.texts import divide, python_documentation, read_texts
from farrank_rankers.errors import RankerError
from farrank_rankers.exports.manifest import ExportFormat, ExportPrecision, Parity

_INT8 = (
    "int8 takes minutes, and only then it is known whether the ranker's rankings survive it: an export whose "
    "Kendall's tau is too low is not written, unless --allow-drift is given"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "ranker", metavar="RANKER", help="an artifact, a folder, a hub name, 'embedded' or 'embedded:NAME'"
    )
    add = partial(flag, parser)
    add("--format", "what to write", choices=get_args(ExportFormat), default="onnx")
    add("--precision", "what it will be computed in", choices=get_args(ExportPrecision), default="fp32")
    add("--out FOLDER", "write the ranker's artifact here, the export into it", Path)
    meaning = 'measure and calibrate with these, one {"text": …} a line, and not with Python\'s documentation'
    add("--texts JSONL", meaning, Path)
    add("--allow-drift", "keep an export whose scores are beyond their bound, and say so in its manifest")
    add("--force", "replace an export that stands there")
    add("--download", "fetch from the hub what is not in its cache")


def run(args: argparse.Namespace) -> int:
    """Export the ranker, say how close the export comes to it.

    Raises: CommandError if it cannot be exported, or its scores are beyond their bound.
    """
    with told_in_a_line(RankerError, file=args.out or args.ranker):
        texts = python_documentation() if args.texts is None else read_texts(args.texts)
        measured, calibration = divide(texts, str(args.texts or "Python's documentation"))
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
        print(f"{refused.runtime} is left out and will not serve it: {refused.reason}{figures}")
    return DONE


def _sentence(parity: Parity) -> str:
    return (
        f"{parity.runtime} on {parity.device} in {parity.computed_in}: {parity.queries} queries × "
        f"{parity.documents} documents, scores off by {parity.max_difference:.2g} at most and "
        f"{parity.mean_difference:.2g} on average (spread {parity.spread:.2g}), "
        f"Kendall's tau {parity.kendall_tau:.4f}, top-10 overlap {parity.top10_overlap:.3f}; "
        f"bound: {parity.bound}"
    )
