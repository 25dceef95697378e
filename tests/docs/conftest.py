"""The Dockerfile, the documents' examples, and a server as the README starts it, with tiny rankers."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
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
        return [shlex.split(line, comments=True) for line in lines if line.strip()]


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's base, and its instructions in order as (name, rest of the line)."""

    base: str
    instructions: tuple[tuple[str, str], ...]

    def lines(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The stages by name, in order."""

    stages: dict[str, Stage]

    @classmethod
    def read(cls) -> Dockerfile:
        text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
        stages: dict[str, Stage] = {}
        name, base = "", ""
        found: list[tuple[str, str]] = []
        for line in [*filter(None, map(str.strip, text.splitlines())), "FROM end AS end"]:
            instruction, rest = line.split(maxsplit=1)
            if instruction == "FROM":
                if name:
                    stages[name] = Stage(base, tuple(found))
                base, _, name = rest.split()
                found = []
            else:
                found.append((instruction, rest))
        return cls(stages)

    def inherited(self, target: str, name: str) -> list[str]:
        """An instruction's lines in a stage and all that it is built from, oldest first."""
        stage = self.stages[target]
        before = self.inherited(stage.base, name) if stage.base in self.stages else []
        return before + stage.lines(name)

    def environment(self, target: str) -> dict[str, str]:
        words = [word for line in self.inherited(target, "ENV") for word in shlex.split(line)]
        return dict(word.split("=", 1) for word in words)

    def requirements(self) -> str:
        """What the stage of that name writes into requirements.txt, by its own command."""
        stage = self.stages["requirements"]
        (argument,), (line,) = stage.lines("ARG"), stage.lines("RUN")
        name, _, extras = shlex.split(argument)[0].partition("=")
        written, _, file = line.rpartition(" > ")
        assert file == "requirements.txt"
        return subprocess.run(
            ["sh", "-c", written],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", name: extras},
        ).stdout


@pytest.fixture(scope="session")
def dockerfile() -> Dockerfile:
    return Dockerfile.read()


@pytest.fixture(scope="session")
def readme() -> list[Block]:
    return blocks((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def five_lines() -> list[list[str]]:
    """The words of each line under "Your own cross-encoder in five lines"."""
    page = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## Your own cross-encoder in five lines\n")
    (block,) = blocks(section.partition("\n## ")[0])
    return block.commands()


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
