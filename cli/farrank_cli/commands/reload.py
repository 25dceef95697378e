"""`farrank reload`: make a running server swap changed rankers, reopen its indexes and reread its keys."""

import argparse
from functools import partial
from pathlib import Path

from farrank_cli.exit_codes import DONE, REFUSED, TRY_AGAIN, CommandError, told_in_a_line
from farrank_cli.flags import flag, positive

TIMEOUT_S = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = partial(flag, parser)
    add("--pid-file FILE", "the file of farrank serve --pid-file", Path, required=True)
    add("--timeout SECONDS", "maximum wait for the server", positive, default=TIMEOUT_S)


def run(args: argparse.Namespace) -> int:
    """Send the signal, and wait until the server has reloaded.

    Raises: CommandError, one line, if there is no server, or it keeps an old ranker, its old indexes or keys.
    """
    from farrank_server import pid_file

    with told_in_a_line(file=args.pid_file):
        try:
            pid_file.reload(args.pid_file, args.timeout)
        except pid_file.ReloadFailed as error:
            raise CommandError(f"the server keeps what it could not reload: {error}", REFUSED) from None
        except TimeoutError as error:
            raise CommandError(str(error), TRY_AGAIN) from None
        except (pid_file.NotRunning, ProcessLookupError, FileNotFoundError) as error:
            raise CommandError(f"{args.pid_file}: no server is running with this file", TRY_AGAIN) from error
    print("reloaded")
    return DONE
