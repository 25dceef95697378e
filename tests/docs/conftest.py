"""The documents' examples and what they need: a server as the README starts it, with tiny rankers."""

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    def commands(self) -> list[list[str]]:
        """The words of each command line of a block of shell."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [shlex.split(line) for line in lines if line.strip()]


@pytest.fixture(scope="session")
def readme() -> list[Block]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@pytest.fixture(scope="session")
def commands(readme: list[Block]) -> list[list[str]]:
    return [words for block in readme if block.language == "bash" for words in block.commands()]


@pytest.fixture(scope="session")
def server(
    readme: list[Block],
    commands: list[list[str]],
    tiny_rankers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SpawnedServer]:
    """The README's own collection, indexed and served by its own commands."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "collection.jsonl").write_text(next(block.text for block in readme if block.language == "json"))
    (folder / "models").mkdir()
    (folder / "models" / "my-reranker").symlink_to(tiny_rankers["maxp"])
    index = next(words for words in commands if words[:2] == ["farrank", "index"])
    serve = next(words for words in commands if words[:2] == ["farrank", "serve"])
    # Later settings win: a tiny ranker in the embedded one's place.
    tiny = ["--ranker", f"minilm={tiny_rankers['biencoder']}", "--log-level", "warning"]
    with contextlib.chdir(folder):
        assert main(index[1:]) == 0
        with spawned_server([*serve[2:], *tiny]) as spawned:
            yield spawned
