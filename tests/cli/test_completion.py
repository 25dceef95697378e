"""The completion script in a real bash."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.commands import Outcome

COMPLETE = """
COMP_WORDS=({words}); COMP_CWORD={last}; _farrank; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def complete(farrank: Callable[..., Outcome]) -> Callable[..., list[str]]:
    """Return bash's completions of the last word."""
    script = farrank("completion", "bash").out

    def offered(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in ("farrank", *words))
        line = COMPLETE.format(words=quoted, last=len(words))
        bash = shutil.which("bash")
        assert bash
        done = subprocess.run([bash, "-c", script + line], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_commands_flags_and_choices_are_offered(complete: Callable[..., list[str]]) -> None:
    assert {"serve", "rerank", "loadtest", "completion"} <= set(complete(""))
    assert complete("re") == ["reload", "rerank"]
    assert complete("loadtest", "l") == ["latency"]
    assert "--score-scale" in complete("search", "--")
    assert "--climb" in complete("loadtest", "latency", "--")
    assert complete("rerank", "--score-scale", "") == ["raw", "sigmoid"]
    assert complete("loadtest", "latency", "--arrivals", "p") == ["poisson"]
    assert complete("rankers", "n") == ["new"]


def test_other_words_are_left_to_the_shells_own_completion(complete: Callable[..., list[str]]) -> None:
    assert complete("rerank", "READ") == []
