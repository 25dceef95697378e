"""The quality of a small part of the demo, and the rules of its expected file."""

import platform
from pathlib import Path

import pytest

from farrank_bench.reproduce import gate
from farrank_bench.reproduce.corpora import DEMO, read_corpus
from farrank_bench.reproduce.gate import (
    EXPECTED,
    QUESTIONS,
    WAYS,
    Change,
    Expected,
    fallen,
    read_expected,
)


def test_only_more_than_the_most_that_may_be_lost_fails() -> None:
    expected = {"a": 0.5, "b": 0.5, "c": 0.5}
    assert fallen(expected, {"a": 0.4981, "b": 0.9, "c": 0.5}) == []
    assert fallen(expected, {"a": 0.4979, "b": 0.5}) == [
        "a: nDCG@10 is 0.4979, and 0.5000 is expected; at most 0.002 may be lost",
        "c: nDCG@10 of 0.5000 is expected, and it was not measured",
    ]


def test_a_change_keeps_those_before_it_with_its_reason(tmp_path: Path) -> None:
    first = Change("2026-01-02", "the first", "3.11.1", {"a": 0.25})
    changed = Expected((first,)).changed(" a window\nof 256 ", {"a": 0.3000000001})
    changed.write(tmp_path / "expected.json")
    before, now = read_expected(tmp_path / "expected.json").changes
    assert before == first
    assert (now.reason, now.quality, now.python) == ("a window of 256", {"a": 0.3}, platform.python_version())
    with pytest.raises(ValueError, match="reason: must not be blank"):
        changed.changed("\n", {"a": 1.0})


def test_the_command_wants_a_reason_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "measured", lambda folder: {"a": 0.1})
    file = tmp_path / "expected.json"
    for arguments in ([], ["--reason", "  "]):
        with pytest.raises(SystemExit):
            gate.main([*arguments, "--file", str(file)])
        assert "--reason" in capsys.readouterr().err
    assert not file.exists()
    assert gate.main(["--reason", "the first", "--file", str(file)]) == 0
    monkeypatch.setattr(gate, "measured", lambda folder: {"a": 0.05})
    assert gate.main(["--reason", "fewer tokens", "--file", str(file)]) == 0
    assert "a: nDCG@10 is 0.0500, and 0.1000 is expected" in capsys.readouterr().out
    assert [each.reason for each in read_expected(file).changes] == ["the first", "fewer tokens"]


def test_the_part_is_the_demos_first_questions_with_their_judgements(tmp_path: Path) -> None:
    part = read_corpus(DEMO, None, tmp_path).first(QUESTIONS).judged
    assert len(part.queries) == QUESTIONS
    assert part.queries.keys() == part.qrels.keys()


def test_of_each_minor_version_of_python_the_last_change_counts() -> None:
    changes = [
        Change("2026-01-02", "", python, {"a": quality})
        for python, quality in (("3.11.1", 0.1), ("3.12.0", 0.2), ("3.11.9", 0.3), ("3.1.4", 0.4))
    ]
    expected = Expected(tuple(changes))
    assert [expected.newest(each) for each in ("3.11.0", "3.12.7", "3.1.0", "3.13.0")] == [
        changes[2],
        changes[1],
        changes[3],
        None,
    ]


@pytest.mark.slow
def test_no_quality_has_fallen(tmp_path: Path) -> None:
    expected = read_expected(EXPECTED).newest()
    if expected is None:
        pytest.skip(f"the gate's command has not run with Python {platform.python_version()}")
    assert expected.quality.keys() == {way.name for way in WAYS}
    assert fallen(expected.quality, gate.measured(tmp_path)) == []
