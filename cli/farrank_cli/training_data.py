"""The flags that name queries and documents to learn from, and the training set that they describe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_cli.exit_codes import CommandError
from farrank_cli.flags import DOCUMENT_FIELDS, all_or_none, document_fields, flag_group
from farrank_cli.terminal import counted
from farrank_training.processes import is_first_process

if TYPE_CHECKING:
    from farrank_training.groups import TrainingSet


def add_training_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, as a group of their own."""
    meaning = "Judgements and a run to draw negatives from, or one of the two other kinds of files."
    add = flag_group(parser, "data", meaning)
    add("--queries FILE", "id<TAB>text, or .jsonl", Path)
    add("--query-field KEY", "key of the query in .jsonl, such as description", default="")
    add("--qrels FILE", "TREC judgements", Path)
    add("--candidates RUN", "TREC run; its documents that are not relevant are the negatives", Path)
    meaning = "JSON lines with id, text and optionally title, plain or .gz; may be repeated"
    add("--collection FILE", meaning, Path, repeated=True)
    add("--fields FIELD=KEY,…", DOCUMENT_FIELDS, document_fields)
    add("--triples FILE", "query<TAB>relevant text<TAB>other text", Path)
    add(
        "--examples FILE",
        'JSON lines: {"query": …, "pos": […], "neg": […]}, optionally pos_scores, neg_scores',
        Path,
    )


def judged_flags(args: argparse.Namespace) -> dict[str, Path | None]:
    """Give the flags of queries with judgements, and their values."""
    return {"--queries": args.queries, "--qrels": args.qrels, "--candidates": args.candidates}


def texts_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Give the flags that serve a collection or files of queries alone; None where one is not given."""
    return {
        "--collection": args.collection or None,
        "--fields": args.fields,
        "--query-field": args.query_field or None,
    }


def check_training_data(args: argparse.Namespace, command: str) -> bool:
    """Check that the flags name one source; return whether it is queries with judgements.

    Raises: CommandError naming the flags.
    """
    judged = judged_flags(args)
    texts = {"--triples": args.triples, "--examples": args.examples}
    sources = [name for name, value in texts.items() if value is not None]
    if any(value is not None for value in judged.values()):
        sources.append("--queries")
    if len(sources) != 1:
        raise CommandError(
            f"{command}: give one of --queries with --qrels, --candidates and --collection; --triples; "
            "--examples"
        )
    is_judged = sources == ["--queries"]
    if is_judged:
        all_or_none(judged | {"--collection": args.collection or None})
    return is_judged


def read_training_set(
    args: argparse.Namespace, negatives: int, top: int, query_ids: Collection[str] | None = None
) -> TrainingSet:
    """Read the data and print what is left out.

    Raises: TrainingError or InputError, as the functions of `training_set`.
    """
    from farrank_training.training_set import jsonl_set, judged_set, triples_set

    if args.triples is not None:
        found = triples_set(args.triples)
    elif args.examples is not None:
        found = jsonl_set(args.examples, negatives=negatives)
    else:
        found = judged_set(
            args.queries,
            args.qrels,
            args.candidates,
            args.collection,
            negatives=negatives,
            top=top,
            query_ids=query_ids,
            query_field=args.query_field,
            fields=args.fields,
        )
    if is_first_process():
        for note in (*found.notes, f"{counted(len(found), 'group')} an epoch"):
            print(note, file=sys.stderr)
    return found
