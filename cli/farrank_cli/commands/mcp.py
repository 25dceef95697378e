"""`farrank mcp`: give agents the search of a server, over stdio or HTTP.

Source: Model Context Protocol, https://modelcontextprotocol.io/specification
"""

import argparse
import asyncio

from farrank_cli.agent_tools import CONTEXT_TOKENS, agent_server
from farrank_cli.connection import add_connection_flags, open_client
from farrank_cli.exit_codes import DONE
from farrank_cli.flags import at_least, count, flag
from farrank_client import AsyncClient

# Agents that run elsewhere reach it through a proxy that checks who they are.
HOST = "127.0.0.1"
# A request of the server's usual `max_request_bytes`, 24 MiB, takes up to three times that in JSON, whose
# clients may write \uXXXX. The SDK's own limit is 4 MiB, and its refusal names none.
MAX_BODY_BYTES = 72 * 2**20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    flag(parser, "--http-port PORT", f"serve at http://{HOST}:PORT/mcp instead of stdio", at_least(0, 65535))
    flag(parser, "--ranker NAME", "ranker to use (the server's default)")
    flag(parser, "--context-tokens N", "tokens of evidence in an answer", count, CONTEXT_TOKENS)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until the agent closes stdin, or until Ctrl-C.

    Raises: CommandError.
    """
    asyncio.run(_serve(args))
    return DONE


async def _serve(args: argparse.Namespace) -> None:
    async with open_client(args, AsyncClient) as client:
        server = agent_server(client, args.ranker, args.context_tokens)
        if args.http_port is None:
            await server.run_stdio_async()
        else:
            await server.run_streamable_http_async(
                host=HOST,
                port=args.http_port,
                stateless_http=True,
                json_response=True,
                max_request_body_size=MAX_BODY_BYTES,
            )
