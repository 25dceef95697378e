"""A real server with tiny rankers, and `farrank` as a function."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server


@pytest.fixture(scope="session")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in ("maxp", "firstp")]
    # Threads that wait for each other on a busy machine take a hundred times as long.
    with spawned_server([*arguments, "--threads=1", "--log-level=warning"]) as spawned:
        yield spawned


@dataclass
class Outcome:
    """What a command left: its exit code and what it printed where."""

    exit_code: int
    out: str
    err: str


@pytest.fixture
def farrank(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command in this process; argparse's own exits count as exit codes, too."""

    def run(*arguments: object) -> Outcome:
        try:
            exit_code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            exit_code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(exit_code, captured.out, captured.err)

    return run
