"""The Dockerfile, the documentation's examples, and the README's server with tiny rankers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from support.documentation import ROOT, Block, Dockerfile, blocks


@pytest.fixture(scope="session")
def dockerfile() -> Dockerfile:
    return Dockerfile.read()


@pytest.fixture(scope="session")
def guide() -> list[Block]:
    """The examples of the README, and of the pages on calling and serving that continue it."""
    pages = (
        ROOT / "README.md",
        ROOT / "docs" / "how-to" / "calling.md",
        ROOT / "docs" / "how-to" / "serving.md",
    )
    return [block for page in pages for block in blocks(page.read_text(encoding="utf-8"))]


@pytest.fixture(scope="session")
def five_lines() -> list[list[str]]:
    """Return the words of each line under "Your own cross-encoder in five lines"."""
    page = (ROOT / "docs" / "how-to" / "exports.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## Your own cross-encoder in five lines\n")
    (block,) = blocks(section.partition("\n## ")[0])
    return block.commands()


@pytest.fixture(scope="session")
def commands(guide: list[Block]) -> list[list[str]]:
    return [words for block in guide if block.language == "bash" for words in block.commands()]


@pytest.fixture(scope="session")
def server(
    guide: list[Block],
    commands: list[list[str]],
    tiny_rankers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SpawnedServer]:
    """The README's own collection, indexed and served by the README's own commands."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "collection.jsonl").write_text(next(block.text for block in guide if block.language == "json"))
    (folder / "models").mkdir()
    (folder / "models" / "my-reranker").symlink_to(tiny_rankers["maxp"])
    index = next(words for words in commands if words[:2] == ["farrank", "index"])
    serve = next(words for words in commands if words[:2] == ["farrank", "serve"])
    # Later settings win: a tiny ranker replaces the embedded one.
    tiny = ["--ranker", f"minilm={tiny_rankers['biencoder']}", "--log-level", "warning", "--http-port", "0"]
    with contextlib.chdir(folder):
        assert main(index[1:]) == 0
        with spawned_server([*serve[2:], *tiny]) as spawned:
            yield spawned
