"""The command from collections to report, with tiny rankers of random weights; and its pages and charts."""

import re
from pathlib import Path

import matplotlib.image
import pytest

from farrank_bench.depth.__main__ import main
from farrank_bench.depth.depth_page import section, written
from farrank_bench.depth.judging import SCHEDULES
from support.articles import write_articles

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def arguments(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    squad = write_articles(tmp_path_factory.mktemp("squad"), articles=18, passages=17, words=150)
    sources = {"maxp": "maxp", "parade-attn": "parade-attn", "firstp": "firstp", "encoder": "biencoder"}
    flags = [word for flag, family in sources.items() for word in (f"--{flag}", str(tiny_rankers[family]))]
    return [*flags, "--squad", str(squad), "--collections", "articles", "far", "--article-candidates", "3"]


def without_times(page: str) -> str:
    return re.sub(r"takes \d\.\d+ of the time|`python -m .*`", "", page)


def test_the_command_makes_replays_and_goes_on(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = [*arguments, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "report")]
    assert main([*here, "--questions", "14"]) == 0
    page = (tmp_path / "report" / "README.md").read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    for name in ("articles", "far"):
        assert f"## {name}\n\n![Quality against cost]({name}.png)" in page
        assert matplotlib.image.imread(tmp_path / "report" / f"{name}.png").ndim == 3
        for ranker in ("maxp", "parade-attn"):
            part = page.partition(f"### {name}, `{ranker}`")[2].partition("###")[0]
            chosen, to_test = re.search(r"(\d+) questions to choose by, (\d+) to test", part).groups()  # type: ignore[union-attr]
            assert int(chosen) + int(to_test) == 14
            for what in ("first chunks", "BM25", "oracle", "full reading", "FirstP, 512 positions"):
                assert f"| {what} | 0." in part or f"| {what} | 1." in part
            assert "| 2 chunks of all documents, by BM25 | " in part
            assert re.search(r"It keeps \d+\.\d% of full reading's quality", part)

    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}
    assert main([*here, "--questions", "14", "--minutes", "0"]) == 0
    again = (tmp_path / "report" / "README.md").read_text(encoding="utf-8")
    assert without_times(again) == without_times(page)
    assert "stopped after 0 minutes" in capsys.readouterr().out
    # A replay of more questions leaves out those whose scores are missing.
    assert main([*here, "--questions", "16", "--minutes", "0"]) == 0
    assert "articles, maxp: 14 questions replayed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")} == made


def test_schedules_are_written_as_rounds() -> None:
    assert [written(each) for each in SCHEDULES[3:6]] == [
        "4 chunks of all documents",
        "1 chunk of all documents, then 1 chunk of the best 50%",
        "1 chunk of all documents, then 3 chunks of the best 20%",
    ]


def test_a_page_without_a_ranker_has_only_its_chart() -> None:
    assert section("demo", "MRR", {}, 1) == "## demo\n\n![Quality against cost](demo.png)"


def test_a_collection_with_too_few_questions_is_left_out(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    given = [*arguments, "--cache", str(tmp_path / "cache"), "--out", str(out), "--collections", "articles"]
    assert main([*given, "--questions", "2", "--minutes", "0"]) == 0
    said = capsys.readouterr().out
    assert "articles, maxp: left out: 0 questions divide into 0 to choose by and 0 to test" in said
    assert "## articles" not in said
