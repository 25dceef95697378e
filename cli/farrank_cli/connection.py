"""The flags of the connection to a server, and the client that they make."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from farrank_cli.exit_codes import REFUSED, TRY_AGAIN, CommandError, told_in_a_line
from farrank_cli.flags import flag_group, positive
from farrank_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    FarrankError,
    ResourceExhausted,
    Tls,
    Unavailable,
)

KEY_VARIABLE = "FARRANK_API_KEY"
# A key has about fifty characters.
MAX_KEY_CHARACTERS = 4096


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command that calls a server."""
    add = flag_group(parser, "server")
    add("--server HOST:PORT", "address of the server", default="localhost:50051")
    add("--timeout-s S", "deadline, including retries", positive, 60.0)
    meaning = f"file with the API key to send (default: the variable {KEY_VARIABLE}, if set)"
    add("--api-key-file FILE", meaning, Path)
    add("--tls", "TLS, trusting the usual authorities")
    add("--tls-ca PEM", "TLS, trusting these authorities", Path)
    add("--tls-certificate PEM", "client certificate", Path)
    add("--tls-key PEM", "its private key", Path)
    add("--tls-server-name NAME", "name in the server's certificate")


def read_key(path: Path) -> str:
    """Read an API key from a file; on the command line other users would see it.

    Raises: CommandError naming the file if it cannot be read, or does not hold exactly one key.
    """
    with told_in_a_line(file=path), path.open(encoding="utf-8", errors="replace") as file:
        words = file.read(MAX_KEY_CHARACTERS).split()
    if len(words) != 1:
        raise CommandError(f"--api-key-file {path}: must hold one key and nothing else")
    return words[0]


def _key_to_show(args: argparse.Namespace) -> str | None:
    if args.api_key_file is not None:
        return read_key(args.api_key_file)
    return os.environ.get(KEY_VARIABLE, "").strip() or None


AnyClient = TypeVar("AnyClient", Client, AsyncClient)


def open_client(args: argparse.Namespace, kind: type[AnyClient]) -> AnyClient:
    """Open the client that the flags describe.

    Raises: CommandError.
    """
    named = (args.tls_ca, args.tls_certificate, args.tls_key, args.tls_server_name)
    try:
        with told_in_a_line():
            return kind(
                args.server,
                timeout_s=args.timeout_s,
                tls=Tls(*named) if args.tls or any(named) else None,
                api_key=_key_to_show(args),
            )
    except ValueError as error:
        raise CommandError(str(error).replace("target: ", "--server: ")) from error


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[Client]:
    """Open the client that the flags describe.

    Raises: CommandError, one line with the server's message, if a call fails.
    """
    with open_client(args, Client) as client:
        try:
            yield client
        except FarrankError as error:
            # A message that is too large is RESOURCE_EXHAUSTED, too, but without a retry delay.
            again = isinstance(error, Unavailable | DeadlineExceeded) or (
                isinstance(error, ResourceExhausted) and error.retry_after_s is not None
            )
            message = f"{args.server}: {' '.join(error.message.split())} [{error.code.name}]"
            raise CommandError(message, TRY_AGAIN if again else REFUSED) from error
