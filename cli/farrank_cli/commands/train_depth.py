"""`farrank train depth`: calibrate the plan of a ranker's adaptive depth, and write it into the artifact."""

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import DOCUMENT_FIELDS, at_least, document_fields, flag, share
from farrank_cli.terminal import Progress
from farrank_rankers.errors import RankerError
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_trec.errors import TrecError

if TYPE_CHECKING:
    from farrank_rankers.depth.plan import DepthPlan
    from farrank_rankers.ranker import Ranker

# The positions that FirstP reads of a document.
_FIRSTP_POSITIONS = 512


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("ranker", metavar="RANKER", help="an artifact; with --out also another ranker")
    add, defaults = partial(flag, parser), TrainingConfig()
    add("--queries FILE", "id<TAB>text, or .jsonl", Path, required=True)
    add("--query-field KEY", "key of the query in .jsonl, such as description", default="")
    add("--qrels FILE", "TREC judgements", Path, required=True)
    add("--candidates RUN", "TREC run of the documents to rerank", Path, required=True)
    meaning = "JSON lines with id, text and optionally title, plain or .gz; may be repeated"
    add("--collection FILE", meaning, Path, repeated=True, required=True)
    add("--fields FIELD=KEY,…", DOCUMENT_FIELDS, document_fields)
    add("--top N", "candidates of a query", at_least(1), defaults.dev_depth)
    add("--keep X", "share of full reading's quality that the plan must keep", share, 0.97)
    add("--measure NAME", "measure of the quality, as in ir_measures", default=defaults.measure)
    add("--seed N", "seed of the division of the queries, and of the intervals", at_least(0, 2**32 - 1), 0)
    add("--out FOLDER", "write a copy of the ranker, without its exports, and leave RANKER as it is", Path)
    add("--cpu", "read on the CPU, even if there is a GPU")


def run(args: argparse.Namespace) -> int:
    """Calibrate, write the plan, and print its figures. Nothing is written if no plan is confirmed.

    Raises: CommandError if flags or files cannot be used, or no plan is confirmed.
    """
    import torch

    from farrank_rankers.files.depth_file import write_plan
    from farrank_rankers.files.model_files import SPEC_FILE
    from farrank_rankers.files.open import open_ranker
    from farrank_training.depth_calibration import calibrate
    from farrank_training.validation import read_validation_set

    folder = Path(args.ranker)
    if args.out is None and not (folder / SPEC_FILE).is_file():
        raise CommandError(
            f"--out is missing: {args.ranker} is not an artifact; only an artifact can hold a plan"
        )
    _check_place(folder, args.out)
    with told_in_a_line(TrainingError, RankerError, TrecError, file=args.out or folder):
        device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
        ranker = open_ranker(args.ranker, device=device)
        validation = read_validation_set(
            args.queries,
            args.qrels,
            args.candidates,
            args.collection,
            depth=args.top,
            query_field=args.query_field,
            fields=args.fields,
        )
        progress = Progress("queries", len(validation.candidates))
        try:
            plan = calibrate(
                ranker, validation, keep=args.keep, measure=args.measure, seed=args.seed, progress=progress
            )
        finally:
            progress.end()
        if args.out is None:
            write_plan(folder, plan)
        else:
            _save_copy(ranker, plan, args.out)
    _tell(plan)
    return DONE


def _check_place(folder: Path, out: Path | None) -> None:
    """Check that a plan can be written: reading takes long.

    Raises: CommandError naming the place that is taken, or in which nothing can be written.
    """
    if out is not None:
        _check_new(out)
        folder = next(each for each in out.absolute().parents if each.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise CommandError(f"{folder}: must be a folder in which files can be written")


def _check_new(out: Path) -> None:
    if out.exists():
        raise CommandError(f"--out {out}: exists; it must be a new folder")


def _save_copy(ranker: "Ranker", plan: "DepthPlan", out: Path) -> None:
    from farrank_rankers.files.folder_in_place import folder_in_place
    from farrank_rankers.files.save import save_ranker
    from farrank_rankers.reader import Reader

    reader = ranker.reader
    ranker.reader = Reader(replace(reader.spec, depth=plan), reader.tokenizer, reader.backbone)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with folder_in_place(out.absolute(), partial(_check_new, out)) as making:
        save_ranker(ranker, making)


def _tell(plan: "DepthPlan") -> None:
    figures = plan.figures
    assert figures is not None, "a calibrated plan has figures"
    print(f"reads {plan}")
    print(
        f"keeps {figures.kept:.1%} of {figures.measure} ({figures.low:.1%} to {figures.high:.1%}) "
        f"on {figures.queries:,} queries"
    )
    print(
        f"costs {figures.chunks:.2f} chunks a document, {figures.tokens:,.0f} tokens: "
        f"{figures.tokens / _FIRSTP_POSITIONS:.2f} of FirstP's {_FIRSTP_POSITIONS}"
    )
