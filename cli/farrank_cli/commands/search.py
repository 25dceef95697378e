"""`farrank search`: let the server find candidates in one of its indexes, and rerank them."""

import argparse

from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE
from farrank_cli.flags import count, flag
from farrank_cli.ranking_output import add_ranking_flags, print_ranking, ranking_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    flag(parser, "--index NAME", "index to search (the server's only one)")
    flag(parser, "--k K", "candidates to rerank (the server's default)", count)
    add_ranking_flags(parser)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Call the server and print the ranking.

    Raises: CommandError if the call fails.
    """
    with connect(args) as client:
        # Printing passages needs the texts, which are in the server's index.
        ranking = client.search_and_rerank(
            args.query, index=args.index, k=args.k, return_texts=True, **ranking_options(args)
        )
    print_ranking(ranking, args.query, lambda result: result.text or "", as_json=args.json)
    return DONE
