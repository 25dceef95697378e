"""The flags that say which server to ask and how, and the client they make."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farrank_cli.exit_codes import REFUSED, TRY_AGAIN, CommandError
from farrank_cli.numbers import positive
from farrank_client import Client, DeadlineExceeded, FarrankError, ResourceExhausted, Tls, Unavailable


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add what every command that asks a server takes."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--server", default="localhost:50051", metavar="HOST:PORT", help="where it listens (%(default)s)"
    )
    group.add_argument(
        "--timeout-s",
        type=positive,
        default=60.0,
        metavar="S",
        help="deadline, retries included (%(default)g)",
    )
    group.add_argument("--tls", action="store_true", help="TLS, trusting the usual authorities")
    group.add_argument("--tls-ca", type=Path, metavar="PEM", help="TLS, trusting these authorities")
    group.add_argument("--tls-certificate", type=Path, metavar="PEM", help="certificate to show the server")
    group.add_argument("--tls-key", type=Path, metavar="PEM", help="its private key")
    group.add_argument("--tls-server-name", metavar="NAME", help="name in the server's certificate")


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[Client]:
    """Open the client that the flags ask for.

    Raises: CommandError, one line with the server's words, where a call fails.
    """
    try:
        client = Client(args.server, timeout_s=args.timeout_s, tls=_tls(args))
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(str(error).replace("target: ", "--server: ")) from error
    with client:
        try:
            yield client
        except FarrankError as error:
            message = " ".join(error.message.split())
            raise CommandError(f"{args.server}: {message} [{error.code.name}]", _exit_code(error)) from error


def _tls(args: argparse.Namespace) -> Tls | None:
    named = (args.tls_ca, args.tls_certificate, args.tls_key, args.tls_server_name)
    return Tls(*named) if args.tls or any(named) else None


def _exit_code(error: FarrankError) -> int:
    # A message that is too large is RESOURCE_EXHAUSTED as well, without a hint when to come back.
    again = isinstance(error, Unavailable | DeadlineExceeded) or (
        isinstance(error, ResourceExhausted) and error.retry_after_s is not None
    )
    return TRY_AGAIN if again else REFUSED
