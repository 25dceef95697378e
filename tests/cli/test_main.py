"""The choice of a command, and the output of expected failures."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from farrank_cli.main import COMMANDS

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


def test_help_lists_the_commands_and_the_exit_codes(farrank: Farrank) -> None:
    outcome = farrank("--help")

    assert outcome.exit_code == 0
    assert all(
        name in outcome.out and each.summary.split()[0] in outcome.out for name, each in COMMANDS.items()
    )
    assert "interrupted" in outcome.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(farrank: Farrank, name: str) -> None:
    outcome = farrank(name, "--help")

    assert outcome.exit_code == 0
    assert outcome.out.startswith(f"usage: farrank {name}")


@pytest.mark.parametrize(
    "arguments", [[], ["nope"], ["search"], ["rerank", "--query", "q", "--top-n", "0", "f"]]
)
def test_wrong_usage_is_exit_code_2(farrank: Farrank, arguments: list[str]) -> None:
    outcome = farrank(*arguments)

    assert outcome.exit_code == 2
    assert "usage: farrank" in outcome.err


def test_a_missing_extra_says_how_to_install_it(farrank: Farrank, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_torch(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "farrank_server.run":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_torch)

    outcome = farrank("serve")

    assert outcome.exit_code == 2
    assert outcome.err.startswith(
        "farrank: farrank serve needs the server extra: pip install 'farrank[server]'"
    )


def test_a_missing_module_of_ours_is_a_bug_and_shows_as_one(
    farrank: Farrank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "farrank_server.run", None)

    with pytest.raises(ModuleNotFoundError):
        farrank("serve")


def test_listing_the_commands_loads_no_heavy_package() -> None:
    script = (
        "import sys, contextlib, farrank_cli.main as m\n"
        "with contextlib.suppress(SystemExit): m.main(['--help'])\n"
        "print([n for n in ('torch', 'numpy', 'transformers', 'grpc') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "[]"


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    script = (
        "import sys, types, farrank_cli.main as m\n"
        "def run(args):\n"
        "    while True: print('line')\n"
        "endless = types.SimpleNamespace(configure=lambda parser: None, run=run)\n"
        "sys.modules['farrank_cli.commands.endless'] = endless\n"
        "m.COMMANDS['endless'] = m.Subcommand('x')\n"
        "sys.exit(m.main(['endless']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == 141
