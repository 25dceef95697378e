"""The examples of the README, and of the pages that continue it, describe the project."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_cli.commands import serve
from farrank_cli.main import load, main
from farrank_cli.spawn import SpawnedServer
from farrank_demo.questions import load_questions
from farrank_server.config.schema import LimitsConfig, ServerConfig
from farrank_server.config.server_config import build_config

if TYPE_CHECKING:
    from support.documentation import Block

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "localhost:50051"


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_python_examples_run(guide: list[Block], server: SpawnedServer) -> None:
    examples = [block.text for block in guide if block.language == "python"]
    assert len(examples) >= 2
    for example in examples:
        assert ADDRESS in example
        code = example.replace(ADDRESS, server.address)
        assert run([sys.executable, "-W", "error", "-c", code]).strip()


def test_client_commands_run(
    commands: list[list[str]],
    server: SpawnedServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    calls = [
        words for words in commands if words[0] == "farrank" and words[1] in ("rankers", "search", "rerank")
    ]
    assert calls
    for words in calls:
        assert main([*words[1:], "--server", server.address]) == 0
        assert capsys.readouterr().out.strip()


def test_the_json_call_works_by_reflection(commands: list[list[str]], server: SpawnedServer) -> None:
    calls = [words for words in commands if words[:2] == ["buf", "curl"]]
    assert calls
    for words in calls:
        buf = str(Path(sys.executable).with_name("buf"))
        answer = json.loads(run([buf, *(word.replace(ADDRESS, server.address) for word in words[1:])]))
        assert [result["id"] for result in answer["results"]] in (["rivers"], ["bread"])


def farrank_lines(commands: Iterable[list[str]]) -> Iterable[tuple[dict[str, str], list[str]]]:
    """Return every call of the command, also in a container: its environment and its arguments."""
    for words in commands:
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        if "farrank" in words:
            yield variables, words[words.index("farrank") + 1 :]
        elif words[:2] == ["docker", "run"]:
            image = next(word for word in words if re.fullmatch(r"farrank:\w+", word))
            yield variables, words[words.index(image) + 1 :] or ["serve"]


def test_every_farrank_command_is_one_and_its_configuration_holds(
    guide: list[Block], commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "farrank.yaml").write_text(next(block.text for block in guide if block.language == "yaml"))
    lines = list(farrank_lines(commands))
    assert len(lines) > 8
    for variables, (name, *arguments) in lines:
        parser = argparse.ArgumentParser(exit_on_error=False)
        load(name).configure(parser)
        parsed = parser.parse_args(arguments)
        if name == "serve":
            config = build_config(serve.read_settings(parsed, variables))
            assert config != ServerConfig() or not arguments


def test_no_example_writes_into_a_folder_of_the_sources() -> None:
    """Otherwise an index of a checkout would go into its packages and images."""
    # Reports of measurements go into docs/benchmarks, which no package contains.
    sources = {path.parents[1].name for path in ROOT.glob("*/farrank*/__init__.py")} - {"docs"}
    pages = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))]
    written = re.compile(r"(?:--out |--index \w+=|--volume \./|path: )(\w+)[/:]")
    folders = {folder for page in pages for folder in written.findall(page)}
    assert "data" in folders
    assert not folders & sources


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    pages = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))]
    named = {target for page in pages for target in re.findall(r"(?:`|^)make ([\w-]+)", page, re.MULTILINE)}
    assert {"demo", "test", "check"} <= named <= targets


def test_images_are_the_dockerfiles_targets(commands: list[list[str]]) -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    built = {
        words[words.index("--target") + 1]: words[words.index("--tag") + 1]
        for words in commands
        if words[:2] == ["docker", "build"]
    }
    assert built == {target: f"farrank:{target}" for target in ("cpu", "cuda", "tensorrt")}
    assert built.keys() <= stages


def test_limits_and_their_defaults_are_the_configurations() -> None:
    page = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.,]+|none) \|", page, re.MULTILINE))
    defaults = {each.name: each.default for each in dataclasses.fields(LimitsConfig)}
    read = {name: None if each == "none" else float(each.replace(",", "")) for name, each in rows.items()}
    assert read == defaults


def test_the_number_of_judged_questions_is_the_demos() -> None:
    pages = README + (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(\d+) judged questions", pages)) == {str(len(load_questions()))}
