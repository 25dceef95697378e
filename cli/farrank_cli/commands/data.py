"""`farrank data`: collections made for training and analysis, and where relevant passages lie in others."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import add_commands, at_least, count, flag, flag_group
from farrank_cli.terminal import Progress
from farrank_cli.terminated import sigterm_interrupts
from farrank_rankers.errors import RankerError
from farrank_rankers.files.model_files import EMBEDDED, locate
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_trec.errors import TrecError

if TYPE_CHECKING:
    from farrank_training.data_sets.positions import Positions

KINDS = {
    "positions": "show where relevant passages lie in documents, beside the papers' collections",
}

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


# The farrank_training imports are local: each kind loads its own libraries, and help none of them.
def configure(parser: argparse.ArgumentParser) -> None:
    """Add what there is to make or to show, and its flags."""
    kinds = add_commands(parser, KINDS, title="data", dest="kind", metavar="KIND", required=True)
    _configure_positions(kinds["positions"])


def run(args: argparse.Namespace) -> int:
    """Do what was asked for.

    Raises: CommandError if a file is not as it should be; ModuleNotFoundError if the train extra is missing.
    """
    from farrank_training.errors import TrainingError

    with (
        sigterm_interrupts(),
        told_in_a_line(TrainingError, TrecError, RankerError, file=args.out),
    ):
        {"positions": _positions}[args.kind](args)
    return DONE


def _tokenizer_flag(parser: argparse.ArgumentParser) -> None:
    meaning = "a folder with tokenizer.json, or 'embedded': what counts tokens"
    flag(parser, "--tokenizer SOURCE", meaning, default=EMBEDDED)


def _tokenizer(source: str) -> TextTokenizer:
    return TextTokenizer(TokenizerFiles.read(locate(source).folder))


def _configure_positions(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _POSITIONS
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = flag_group(parser, "judged passages, looked for in documents")
    meaning = "JSON lines of passages; with `article` and `pos` they are their documents' parts"
    add("--passages FILE", meaning, Path, nargs="+")
    add("--qrels FILE", "which passages are relevant to which queries", Path)
    meaning = "JSON lines of documents in which the passages are looked for, and not in their articles"
    add("--documents FILE", meaning, Path, nargs="+")
    add("--document-qrels FILE", "which documents are relevant to which queries", Path)
    _tokenizer_flag(parser)
    add = flag_group(parser, "or judged snippets of documents")
    add("--snippets FILE", "qrels whose documents are called DOCID_SNIPPETINDEX", Path)
    add("--snippet-tokens N", "tokens of a snippet, about", count)
    add = partial(flag, parser)
    add("--min-grade N", "the least grade that is relevant", at_least(1), 1)
    add("--chunk-tokens N", "tokens of a chunk (%(default)d: the papers')", count, 477)
    add("--name TEXT", "what the collection is called in table and picture", default="here")
    add("--out FOLDER", "where positions.md, positions.csv and positions.png go", Path, required=True)


def _positions(args: argparse.Namespace) -> None:
    from farrank_training.data_sets.positions_report import write_positions

    progress = Progress("documents searched")
    try:
        found = _found_positions(args, progress)
    finally:
        progress.end()
    print(write_positions(args.out, args.name, found, args.chunk_tokens), end="")


def _found_positions(args: argparse.Namespace, progress: Progress) -> Positions:
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
        tokenizer = _tokenizer(args.tokenizer)
        return positions_of_passages(
            args.passages, args.qrels, args.documents, args.document_qrels, tokenizer, **searching
        )
    if given == {"passages", "qrels"} and len(args.passages) == 1:
        return positions_of_articles(args.passages[0], args.qrels, _tokenizer(args.tokenizer), **searching)
    raise CommandError(
        "data positions: give --snippets and --snippet-tokens; or --passages, --qrels, --documents and "
        "--document-qrels; or, where passages name their articles, one file of --passages and --qrels"
    )
