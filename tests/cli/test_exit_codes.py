"""Expected errors end a command with one line and an exit code."""

import errno
import os
from pathlib import Path

import pytest

from farrank_cli.exit_codes import CommandError, told_in_a_line

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "file", "line"),
    [
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "a"),
            "b",
            "a: No such file or directory",
        ),
        (FULL, Path("b"), "b: No space left on device"),
        (FULL, None, "No space left on device"),
        (OSError("the archive is cut off"), "b", "b: the archive is cut off"),
        (OSError("the archive is cut off"), None, "the archive is cut off"),
        (FileNotFoundError("out/a holds no index"), Path("out/a"), "out/a holds no index"),
    ],
)
def test_the_error_of_a_file_says_what_it_knows(error: OSError, file: object, line: str) -> None:
    with pytest.raises(CommandError) as told, told_in_a_line(file=file):
        raise error
    assert str(told.value) == line
