"""The tutorial's commands and programs run, and give the answers that it promises."""

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from support.documentation import ROOT, Block, blocks

PAGE = (ROOT / "docs" / "tutorial" / "first-search.md").read_text(encoding="utf-8")
BLOCKS = blocks(PAGE)
SHELL = [block for block in BLOCKS if block.language == "bash"]
GRPC, HTTP = "localhost:50051", "http://127.0.0.1:8080"


def words_of(*start: str) -> list[str]:
    """Return the words of the one command that begins so."""
    commands = [words for block in SHELL if "<<" not in block.text for words in block.commands()]
    (found,) = (words for words in commands if tuple(words[: len(start)]) == start)
    return found


@pytest.fixture(scope="module")
def collection() -> Block:
    (found,) = (block for block in SHELL if "<<" in block.text)
    return found


@pytest.fixture(scope="module")
def folder(collection: Block, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tutorial's documents and its index."""
    folder = tmp_path_factory.mktemp("tutorial")
    subprocess.run(["bash", "-euc", collection.text], cwd=folder, check=True, timeout=60)
    with contextlib.chdir(folder):
        assert main(words_of("farrank", "index")[1:]) == 0
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[SpawnedServer]:
    with contextlib.chdir(folder):
        serve = words_of("farrank", "serve")[2:]
        with spawned_server([*serve, "--log-level", "warning", "--http-port", "0"]) as spawned:
            yield spawned


def test_the_command_finds_the_river(server: SpawnedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words_of("farrank", "search")[1:], "--server", server.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(line.split() for line in lines if line.strip().startswith("1 "))
    assert first[2] == "rhine"
    assert any("sentence" in line for line in lines)


def test_the_program_prints_the_sentence_with_the_answer(server: SpawnedServer) -> None:
    (program,) = (block.text for block in BLOCKS if block.language == "python")
    assert GRPC in program
    code = program.replace(GRPC, server.address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    name, score, sentence = done.stdout.splitlines()[0].split(maxsplit=2)
    assert name == "rhine"
    assert 0 < float(score) < 1
    assert sentence == "Near Rotterdam the river meets the North Sea."


def test_the_call_over_http_gives_the_same(server: SpawnedServer) -> None:
    command = words_of("curl")
    assert command[-1].startswith(HTTP)
    command[-1] = command[-1].replace(HTTP, server.http_url)
    done = subprocess.run([*command, "--silent", "--fail"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, shlex.join(command)
    assert json.loads(done.stdout)["results"][0]["id"] == "rhine"
