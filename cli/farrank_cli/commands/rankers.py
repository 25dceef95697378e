"""`farrank rankers`: what a server holds, and the limits it enforces."""

import argparse
import dataclasses
import json
from collections.abc import Sequence

from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE
from farrank_client import Catalog, RankerInfo


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the server and print its catalog.

    Raises: CommandError if the call fails.
    """
    with connect(args) as client:
        catalog = client.rankers()
    if args.json:
        print(json.dumps(dataclasses.asdict(catalog), ensure_ascii=False))
    else:
        _print(catalog)
    return DONE


def _print(catalog: Catalog) -> None:
    _print_columns(
        ("ranker", "family", "backbone", "query", "document", "window/stride", "runs on", "version"),
        [
            (
                each.name,
                _family(each),
                each.backbone,
                f"{each.max_query_tokens} tokens",
                f"{each.max_document_tokens} tokens",
                f"{each.window}/{each.stride}",
                f"{each.runtime} {each.device} {each.precision}",
                each.version,
            )
            for each in catalog.rankers
        ],
    )
    print()
    _print_columns(
        ("index", "documents", "first stage"),
        [(each.name, str(each.documents), each.first_stage) for each in catalog.indexes],
    )
    print()
    limits = dataclasses.asdict(catalog.limits)
    _print_columns(("limit", "value"), [(name, f"{value:,}") for name, value in limits.items()])


def _family(ranker: RankerInfo) -> str:
    """Name the family with what it leaves open: `cross-encoder (aggregation max)`."""
    options = ", ".join(f"{name} {value}" for name, value in ranker.options.items() if value)
    return f"{ranker.family} ({options})" if options else ranker.family


def _print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
