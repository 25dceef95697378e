"""`farrank search`: let the server find candidates in one of its indexes, and rerank them."""

import argparse

from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE
from farrank_cli.flags import count, flag
from farrank_cli.ranking_output import add_ranking_flags, print_ranking, ranking_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    flag(parser, "--index NAME", "where to search (the only one, if there is just one)")
    flag(parser, "--k K", "candidates to rerank (the server's default)", count)
    add_ranking_flags(parser)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the server and print the ranking.

    Raises: CommandError if the call fails.
    """
    with connect(args) as client:
        # The texts are needed to show passages: they lie in the server's index.
        ranking = client.search_and_rerank(
            args.query, index=args.index, k=args.k, return_texts=True, **ranking_options(args)
        )
    print_ranking(ranking, lambda result: result.text or "", as_json=args.json)
    return DONE
