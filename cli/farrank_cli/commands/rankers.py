"""`farrank rankers`: what a server holds, and the limits it enforces; rankers to make, and the papers'."""

import argparse
import dataclasses
import json

from farrank_cli.commands import rankers_exports, rankers_new, rankers_papers
from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.extras import missing_extra
from farrank_cli.terminal import print_columns
from farrank_client import Catalog, Parity, RankerInfo


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, and the subcommands that ask no server."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--papers", action="store_true", help="list the papers' models at full size; asks no server"
    )
    add_connection_flags(parser)
    actions = parser.add_subparsers(title="instead of listing", dest="action", metavar="[new | exports]")
    summary = "make an untrained ranker on a backbone"
    rankers_new.configure(actions.add_parser("new", help=summary, description=f"{summary.capitalize()}."))
    summary = "list the exports of an artifact"
    described = actions.add_parser("exports", help=summary, description=f"{summary.capitalize()}.")
    rankers_exports.configure(described)


def run(args: argparse.Namespace) -> int:
    """Ask the server and print its catalog, unless something else is asked for.

    Raises: CommandError if the call fails, the ranker cannot be made or the server extra is missing.
    """
    if args.action and args.papers:
        raise CommandError(f"rankers: give either {args.action} or --papers")
    try:
        if args.action == "new":
            return rankers_new.run(args)
        if args.action == "exports":
            return rankers_exports.run(args)
        if args.papers:
            return rankers_papers.run(as_json=args.json)
    except ModuleNotFoundError as error:
        asked = f"rankers {args.action}" if args.action else "rankers --papers"
        raise missing_extra(asked, "server", error) from error
    with connect(args) as client:
        catalog = client.rankers()
    if args.json:
        print(json.dumps(dataclasses.asdict(catalog), ensure_ascii=False))
    else:
        _print(catalog)
    return DONE


def _print(catalog: Catalog) -> None:
    print_columns(
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
    print_columns(
        ("ranker", "served by", "scores differ from torch fp32 by"),
        [(each.name, each.runtime_reason, _parity(each.parity)) for each in catalog.rankers],
    )
    print()
    print_columns(
        ("index", "documents", "first stage"),
        [(each.name, str(each.documents), each.first_stage) for each in catalog.indexes],
    )
    print()
    limits = dataclasses.asdict(catalog.limits)
    print_columns(("limit", "value"), [(name, f"{value:,}") for name, value in limits.items()])


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return ""
    return (
        f"{parity.max_difference:.1e} at most, {parity.mean_difference:.1e} in the mean; "
        f"tau {parity.kendall_tau:.4f}, top 10 {parity.top10_overlap:.0%}"
    )


def _family(ranker: RankerInfo) -> str:
    """Name the family with what it leaves open: `cross-encoder (aggregation max)`."""
    options = ", ".join(f"{name} {value}" for name, value in ranker.options.items() if value)
    return f"{ranker.family} ({options})" if options else ranker.family
