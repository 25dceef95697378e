"""The completion script in a real bash, and in a zsh if there is one."""

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

# zsh sets these options when it calls a function that `complete` named.
BEFORE = {
    "bash": "",
    "zsh": "autoload -U compinit bashcompinit; compinit -D; bashcompinit; emulate sh; setopt ksharrays\n",
}


@pytest.fixture(params=["bash", "zsh"])
def complete(farrank: Callable[..., Outcome], request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """Return the shell's completions of the last word."""
    shell: str = request.param
    executable = shutil.which(shell)
    if executable is None:
        pytest.skip(f"{shell} is not installed")
    script = BEFORE[shell] + farrank("completion", shell).out

    def offered(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in ("farrank", *words))
        line = COMPLETE.format(words=quoted, last=len(words))
        done = subprocess.run([executable, "-c", script + line], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        # zsh drops the words with another beginning only where it shows them.
        return [word for word in done.stdout.split() if shell == "bash" or word.startswith(words[-1])]

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
    assert complete("serve", "--config", "") == []
    assert complete("serve", "--ranker", "embedded", "--tls", "-") == complete("serve", "-")
