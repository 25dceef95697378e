"""`farrank export`: a ranker's graphs for other runtimes, with a report of how close they come to it."""

import argparse
import sys
from pathlib import Path
from typing import get_args

from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.terminated import sigterm_interrupts
from farrank_exporters.export import artifact_of, export_ranker
from farrank_exporters.texts import divide, python_documentation, read_texts
from farrank_rankers.errors import RankerError
from farrank_rankers.exports.manifest import ExportFormat, ExportPrecision, Parity, Refused


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("ranker", metavar="RANKER", help="an artifact, a folder, a hub name or 'embedded'")
    parser.add_argument(
        "--format", choices=get_args(ExportFormat), default="onnx", help="what to write (%(default)s)"
    )
    parser.add_argument(
        "--precision",
        choices=get_args(ExportPrecision),
        default="fp32",
        help="what it will be computed in (%(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the ranker's artifact here, the export into it"
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="JSONL",
        help='measure and calibrate with these, one {"text": …} a line, and not with Python\'s documentation',
    )
    parser.add_argument("--force", action="store_true", help="replace an export that stands there")
    parser.add_argument("--download", action="store_true", help="fetch from the hub what is not in its cache")


def run(args: argparse.Namespace) -> int:
    """Export the ranker, say how close the export comes to it.

    Raises: CommandError if it cannot be exported, or its scores are beyond their bound.
    """
    try:
        texts = python_documentation() if args.texts is None else read_texts(args.texts)
        measured, calibration = divide(texts, str(args.texts or "Python's documentation"))
        with (
            sigterm_interrupts() as interrupts,
            artifact_of(args.ranker, args.out, download=args.download) as (ranker, artifact),
        ):

            def progress(line: str) -> None:
                # torch's exporter and the runtimes call Python from C++, which may drop an interrupt.
                interrupts.raise_swallowed()
                print(line, file=sys.stderr, flush=True)

            export = export_ranker(
                ranker,
                artifact,
                args.format,
                args.precision,
                measured=measured,
                calibration=calibration,
                replace_existing=args.force,
                progress=progress,
            )
    except RankerError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        # A disk that fills up names no file.
        raise CommandError(f"{error.filename or args.out or args.ranker}: {error.strerror}") from error
    held = args.out or artifact
    print(
        f"{held / 'exports' / export.folder.name}: {args.format} {args.precision}, version {ranker.version}"
    )
    for parity in export.manifest.parity:
        print(_sentence(parity))
    for refused in export.manifest.refused:
        print(_left_out(refused))
    return DONE


def _left_out(refused: Refused) -> str:
    line = f"{refused.runtime} is left out and will not serve it: {refused.reason}"
    return line if refused.parity is None else f"{line}; {_sentence(refused.parity)}"


def _sentence(parity: Parity) -> str:
    return (
        f"{parity.runtime} on {parity.device} in {parity.computed_in}: {parity.queries} queries × "
        f"{parity.documents} documents, scores off by {parity.max_difference:.2g} at most and "
        f"{parity.mean_difference:.2g} on average (spread {parity.spread:.2g}), "
        f"Kendall's tau {parity.kendall_tau:.4f}, top-10 overlap {parity.top10_overlap:.3f}; "
        f"bound: {parity.bound}"
    )
