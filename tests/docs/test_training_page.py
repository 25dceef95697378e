"""docs/how-to/training.md describes `make train-demo`, and its commands exist."""

import argparse
import re
from pathlib import Path

from farrank_cli.main import load
from farrank_demo.documentation_pairs import PairFiles
from farrank_demo.train_demo import fifteen_minutes
from support.documentation import ROOT, blocks

PAGE = (ROOT / "docs" / "how-to" / "training.md").read_text(encoding="utf-8")
OUT = Path(".cache/train-demo")


def test_every_farrank_command_is_one() -> None:
    commands = [words for block in blocks(PAGE) if block.language == "bash" for words in block.commands()]
    called = [words[1:] for words in commands if words[0] == "farrank"]
    assert {name for name, *_ in called} == {"train", "export", "serve", "index", "loadtest"}
    for name, *arguments in called:
        parser = argparse.ArgumentParser(exit_on_error=False)
        load(name).configure(parser)
        parser.parse_args(arguments)


def test_files_are_those_of_the_demo() -> None:
    files = PairFiles(OUT / "data")
    assert f"--out {OUT}" in (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in (files.collection, files.train, files.dev, files.qrels, files.candidates):
        assert f" {path}" in PAGE
        assert str(path.relative_to(OUT)) in PAGE


def test_the_course_is_the_demos() -> None:
    course = fifteen_minutes()
    first, second = course.lessons
    text = " ".join(PAGE.split())
    assert f"from {first.queries} queries" in text
    assert f"the first {first.chunking.window} tokens" in text
    assert f"from {second.queries} queries" in text
    assert second.chunking.max_document_tokens == 4 * second.chunking.window
    for name in ("backbone_learning_rate", "learning_rate"):
        (named,) = re.findall(rf"\s`?--{name.replace('_', '-')} ([\d.e-]+)", PAGE)
        assert float(named) == getattr(first.config, name)
