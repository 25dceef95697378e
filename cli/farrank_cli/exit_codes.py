"""The command's exit codes, and the failure that carries one.

0    done
1    the server refused the call or failed; the same call will fail again
2    wrong usage: a flag, an input file, the configuration, or an extra that is not installed
3    the server is unreachable, overloaded or late; the same call may succeed later
130  interrupted
141  the reader of the output is gone
"""

from collections.abc import Iterator
from contextlib import contextmanager

DONE = 0
REFUSED = 1
USAGE = 2
TRY_AGAIN = 3
INTERRUPTED = 130
OUTPUT_CLOSED = 141


class CommandError(Exception):
    """The command ends with one line on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def missing_extra(command: str, error: ModuleNotFoundError, *extras: str) -> Exception:
    """Turn the error into one that names the extras to install; unchanged if no extra has the module."""
    if not extras or error.name is None or error.name.startswith("farrank"):
        return error
    *others, last = extras
    named = f"{', '.join(others)} and {last} extras" if others else f"{last} extra"
    return CommandError(
        f"farrank {command} needs the {named}: "
        f"pip install 'farrank[{','.join(extras)}]' (no module {error.name!r})"
    )


@contextmanager
def told_in_a_line(*expected: type[Exception], file: object = None) -> Iterator[None]:
    """Turn expected errors, and those of files, into CommandErrors.

    The message names `file` if the error names none, as that of a full disk.
    """
    try:
        yield
    except expected as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        named, problem = error.filename or file, error.strerror or str(error)
        # Our own OSErrors may begin with the name already.
        names = error.errno is None and problem.startswith(str(named))
        raise CommandError(f"{named}: {problem}" if named and not names else problem) from error
