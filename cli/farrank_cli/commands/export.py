"""`farrank export`: a ranker's graphs for other runtimes, with a report of how close they come to it."""

import argparse
import sys
import time
from pathlib import Path
from typing import get_args

from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.terminated import sigterm_interrupts
from farrank_exporters.export import artifact_of, export_ranker
from farrank_exporters.texts import divide, python_documentation, read_texts
from farrank_rankers.errors import RankerError
from farrank_rankers.exports.manifest import ExportFormat, ExportPrecision, Parity, Refused

_INT8 = (
    "int8 takes minutes, and only then it is known whether the ranker's rankings survive it: an export whose "
    "Kendall's tau is too low is not written, unless --allow-drift is given"
)


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
    parser.add_argument(
        "--allow-drift",
        action="store_true",
        help="keep an export whose scores are beyond their bound, and say so in its manifest",
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
            steps = _Steps()
            if args.precision == "int8" and not args.allow_drift:
                print(_INT8, file=sys.stderr)

            def progress(text: str, done: int, total: int) -> None:
                # torch's exporter and the runtimes call Python from C++, which may drop an interrupt.
                interrupts.raise_swallowed()
                steps.show(text, done, total)

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
            steps.end()
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
        drifts = parity.runtime in export.manifest.drifting
        print(_sentence(parity) + ("; BEYOND ITS BOUND, kept by --allow-drift" if drifts else ""))
    for refused in export.manifest.refused:
        print(_left_out(refused))
    return DONE


class _Steps:
    """Shows an export's steps on stderr: a bar on a terminal, else a line each, with the time left."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def show(self, text: str, done: int, total: int) -> None:
        """Show a step that begins."""
        left_s = (time.monotonic() - self._started_s) / done * (total - done) if done else None
        line = text if left_s is None else f"{text} (step {done + 1} of {total}, about {left_s:.0f} s left)"
        bar = "#" * (20 * done // total)
        sys.stderr.write(f"\r\x1b[K[{bar:.<20}] {line}" if self._on_terminal else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Clear the bar."""
        if self._on_terminal:
            sys.stderr.write("\r\x1b[K")


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
