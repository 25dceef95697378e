"""The benchmark of texts without word boundaries: its table, and bounds that hold on any machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from farrank_bench.hostile_texts import TEXTS, main, open_tokenizer, read_elsewhere
from support import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads a process's peak of memory off /proc")


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Where no memory is asserted, no process needs imports of its own.
    monkeypatch.setattr(subprocess, "run", lambda command, **_: forked.run(command))
    assert main(["--megabytes", "1", "--tokenizers", "embedded", "--texts", "one mark", "spaces"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1:4] for line in lines[2:]] == [
        [" embedded ", " one mark ", " 1,000,000 "],
        [" embedded ", " spaces ", " 0 "],
    ]


def test_memory_follows_the_tokens_that_are_kept(tmp_path: Path) -> None:
    """Ids and offsets of 8 million tokens take 96 MB; the library alone took 560 bytes per token."""
    found = read_elsewhere("embedded", "one mark", 8_000_000)
    assert found.tokens == 8_000_000
    assert found.grown < 300


def test_texts_are_as_large_as_asked_for() -> None:
    for name, made in TEXTS.items():
        assert 0.9 < len(made(2_000_000).encode()) / 2_000_000 < 1.1, name


def test_tokenizers_are_trained_on_what_every_python_has() -> None:
    assert open_tokenizer("byte-pairs").count("the tests") == 2
    assert 2 <= open_tokenizer("unigram").count("the tests") <= 4
