"""`farrank data`: make collections for training and analysis, and measure where relevant passages lie."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import (
    DOCUMENT_FIELDS,
    add_commands,
    at_least,
    count,
    document_fields,
    flag,
    flag_group,
)
from farrank_cli.terminal import Progress, print_columns
from farrank_cli.terminated import sigterm_interrupts
from farrank_rankers.errors import RankerError
from farrank_rankers.files.model_files import EMBEDDED
from farrank_trec.errors import TrecError

if TYPE_CHECKING:
    from farrank_training.data_sets.positions import Positions

KINDS = {
    "far-relevant": "make documents of random passages, the relevant one after token 512",
    "window": "make documents of chunk-sized passages, the relevant one early (Biased) or late (Far)",
    "positions": "show where relevant passages lie in documents, compared with the papers' collections",
}

_FAR_RELEVANT = """\
example:
    farrank data far-relevant --passages collection.jsonl.gz --queries queries.tsv --qrels qrels.txt --out far
makes far/train, far/dev and far/test, each with collection.jsonl, queries.tsv, qrels.txt and candidates.trec.
"""

_WINDOW = """\
example:
    farrank data window --passages squad/passages.jsonl.gz --queries squad/queries.jsonl.gz --out windows
makes windows/biased and windows/far, each with train, dev and test of the same questions.
"""

_POSITIONS = """\
examples:
  FiRA's judged snippets, whose texts are not needed:
    farrank data positions --snippets fira-trec19-qrels-snippets.txt.gz --snippet-tokens 160 --out fira
  MS MARCO's relevant passages in its relevant documents:
    farrank data positions --passages passages.jsonl.gz --qrels passages.qrels.txt \\
      --documents documents.jsonl.gz --document-qrels documents.qrels.txt --out msmarco
  passages that name their article, which is the document:
    farrank data positions --passages squad/passages.jsonl.gz --qrels squad/qrels.dev.txt.gz --out squad
"""


# The farrank_training imports are local: each kind loads only its own libraries, and --help loads none.
def configure(parser: argparse.ArgumentParser) -> None:
    """Add the kinds and their flags."""
    kinds = add_commands(parser, KINDS, title="data", dest="kind", metavar="KIND", required=True)
    _configure_far_relevant(kinds["far-relevant"])
    _configure_window(kinds["window"])
    _configure_positions(kinds["positions"])


def run(args: argparse.Namespace) -> int:
    """Make the data, or show the positions.

    Raises: CommandError if a file cannot be used; ModuleNotFoundError if the train extra is missing.
    """
    from farrank_training.errors import TrainingError

    with (
        sigterm_interrupts(),
        told_in_a_line(TrainingError, TrecError, RankerError, file=args.out),
    ):
        {"far-relevant": _far_relevant, "window": _window, "positions": _positions}[args.kind](args)
    return DONE


def _tokenizer_flag(parser: argparse.ArgumentParser) -> None:
    meaning = "the tokenizer that counts tokens: a folder with tokenizer.json, or 'embedded'"
    flag(parser, "--tokenizer SOURCE", meaning, default=EMBEDDED)


def _making_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every kind that makes data."""
    _tokenizer_flag(parser)
    add = partial(flag, parser)
    add("--seed N", "random seed: the same files and seed give the same bytes", at_least(0), 0)
    add("--out FOLDER", "folder for the collections and data.json", Path, required=True)
    add("--overwrite", "replace data that was made there before")


def _print_made(out: Path, made: Mapping[str, Any]) -> None:
    """Print a line for each collection, and what was left out."""
    rows: list[Sequence[str]] = []

    def add_rows(path: Path, said: Mapping[str, Any]) -> None:
        if "queries" not in said:
            for name, below in said.items():
                add_rows(path / name, below)
            return
        depth, *means = said["candidates"].items()
        measures = ", ".join(f"{measure} {value:.3f}" for measure, value in means)
        rows.append([str(path), f"{said['documents']:,}", f"{said['queries']:,}", f"{depth[1]:,}", measures])

    add_rows(out, made["splits"])
    print_columns(("collection", "documents", "queries", "candidates", "in BM25's order"), rows)
    for reason, count_ in made["left_out"].items():
        print(f"left out: {count_:,} {reason}")


def _configure_far_relevant(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _FAR_RELEVANT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = partial(flag, parser)
    meaning = 'passages, one per line: {"id": …, "text": …}; plain or .gz'
    add("--passages FILE", meaning, Path, nargs="+", required=True)
    add("--fields FIELD=KEY,…", DOCUMENT_FIELDS, document_fields)
    add("--queries FILE", "lines of query_id<TAB>text, or JSON lines", Path, required=True)
    add("--qrels FILE", "judgements of the passages", Path, required=True)
    add("--min-grade N", "lowest grade that counts as relevant", at_least(1), 1)
    for split, size in (("train", 50_000), ("dev", 500), ("test", 1_000)):
        add(f"--{split} N", f"number of {split} queries; 0 leaves the split out", at_least(0), size)
    add("--before N", "the relevant passage starts after more tokens than this", count, 512)
    add("--longest N", "maximum tokens of a document", count, 1431)
    add("--candidates N", "documents that BM25 finds for each query", count, 100)
    _making_flags(parser)


def _far_relevant(args: argparse.Namespace) -> None:
    from farrank_training.data_sets.far_relevant import FarRelevantOptions, make_far_relevant

    bar = Progress("passages")
    making = ""

    def progress(what: str, done: int, total: int) -> None:
        nonlocal making
        if what != making:
            making = what
            bar.begin(what, total or None)
        bar(done)

    options = FarRelevantOptions(
        **{each.name: getattr(args, each.name) for each in fields(FarRelevantOptions)}
    )
    try:
        made = make_far_relevant(
            args.passages,
            args.queries,
            args.qrels,
            args.out,
            tokenizer=args.tokenizer,
            options=options,
            fields=args.fields,
            overwrite=args.overwrite,
            progress=progress,
        )
    finally:
        bar.end()
    _print_made(args.out, made)


def _configure_window(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _WINDOW
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = partial(flag, parser)
    meaning = "JSON lines of passages with `pid`, `article`, `pos`, `text` and `split`"
    add("--passages FILE", meaning, Path, required=True)
    meaning = "JSON lines of questions with `qid`, `text`, `pid`, `answers` and `answer_starts`"
    add("--queries FILE", meaning, Path, required=True)
    add("--test-split NAME", "questions about articles of this split are the test questions", default="dev")
    meaning = "other articles whose passages fill Far's test documents; training gets as many more"
    add("--distractor-articles N", meaning, count, 100)
    meaning = "other articles whose questions are dev's; as many more fill dev's documents"
    add("--dev-articles N", meaning, count, 20)
    add("--chunk-tokens N", "tokens of every passage", at_least(8), 128)
    add("--fewest-chunks N", "minimum passages of a document", at_least(2), 2)
    add("--most-chunks N", "maximum passages of a document", at_least(2), 6)
    add("--candidates N", "documents to rank for each question", at_least(2), 20)
    for split in ("train", "dev", "test"):
        add(f"--{split} N", f"maximum {split} questions, drawn at random (all)", count)
    _making_flags(parser)


def _window(args: argparse.Namespace) -> None:
    from farrank_training.data_sets.window_documents import WindowOptions, make_window_documents

    options = WindowOptions(**{each.name: getattr(args, each.name) for each in fields(WindowOptions)})
    made = make_window_documents(
        args.passages,
        args.queries,
        args.out,
        tokenizer=args.tokenizer,
        options=options,
        overwrite=args.overwrite,
    )
    _print_made(args.out, made)


def _configure_positions(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _POSITIONS
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = flag_group(parser, "judged passages to look for in documents")
    meaning = "JSON lines of passages; with `article` and `pos` they are parts of their documents"
    add("--passages FILE", meaning, Path, nargs="+")
    add("--qrels FILE", "judgements of the passages", Path)
    meaning = "JSON lines of documents in which to look for the passages, instead of their articles"
    add("--documents FILE", meaning, Path, nargs="+")
    add("--document-qrels FILE", "judgements of the documents", Path)
    _tokenizer_flag(parser)
    add = flag_group(parser, "or judged snippets of documents")
    add("--snippets FILE", "qrels with documents named DOCID_SNIPPETINDEX", Path)
    add("--snippet-tokens N", "approximate tokens of a snippet", count)
    add = partial(flag, parser)
    add("--min-grade N", "lowest grade that counts as relevant", at_least(1), 1)
    add("--chunk-tokens N", "tokens of a chunk (%(default)d: the papers')", count, 477)
    add("--name TEXT", "the collection's name in table and chart", default="here")
    add("--out FOLDER", "folder for positions.md, positions.csv and positions.png", Path, required=True)


def _positions(args: argparse.Namespace) -> None:
    from farrank_training.data_sets.positions_report import write_positions

    progress = Progress("documents searched")
    try:
        found = _found_positions(args, progress)
    finally:
        progress.end()
    print(write_positions(args.out, args.name, found, args.chunk_tokens), end="")


def _found_positions(args: argparse.Namespace, progress: Progress) -> Positions:
    from farrank_training.data_sets.made_data import open_tokenizer
    from farrank_training.data_sets.positions import (
        positions_of_articles,
        positions_of_passages,
        positions_of_snippets,
    )

    names = ("passages", "qrels", "documents", "document_qrels", "snippets", "snippet_tokens")
    given = {name for name in names if getattr(args, name) is not None}
    if given == {"snippets", "snippet_tokens"}:
        return positions_of_snippets(args.snippets, args.snippet_tokens, args.min_grade)
    searching: dict[str, Any] = {"min_grade": args.min_grade, "progress": progress}
    if given == {"passages", "qrels", "documents", "document_qrels"}:
        tokenizer = open_tokenizer(args.tokenizer)
        return positions_of_passages(
            args.passages, args.qrels, args.documents, args.document_qrels, tokenizer, **searching
        )
    if given == {"passages", "qrels"} and len(args.passages) == 1:
        return positions_of_articles(
            args.passages[0], args.qrels, open_tokenizer(args.tokenizer), **searching
        )
    raise CommandError(
        "data positions: give --snippets and --snippet-tokens; or --passages, --qrels, --documents and "
        "--document-qrels; or, if passages name their articles, one file of --passages and --qrels"
    )
