"""The command runs all steps, is killed and resumes, and reports the same figures."""

from __future__ import annotations

import csv
import lzma
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from farrank_experiments.__main__ import main
from farrank_experiments.contenders import CONTENDERS, RAND
from farrank_experiments.doses import DOSES
from farrank_loadtest.efficiency.points import all_pairs, measured_gains
from farrank_rankers.papers import paper_models
from support import forked
from support.articles import write_articles

pytestmark = pytest.mark.usefixtures("one_thread")

RANKERS = ("firstp", "avgp", "parade-rand-l2-unplaced", "neural-model1")
KILLED = ("firstp", "neural-model1")


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_articles(tmp_path_factory.mktemp("squad"))


def arguments(squad: Path, work: Path, *rankers: str) -> list[str]:
    chosen = ["--rankers", *rankers, "--whole-rankers", *rankers, "--whole-triples", "6"]
    return ["--quick", "--squad", str(squad), "--work", str(work), *chosen]


@pytest.fixture(scope="module")
def finished(squad: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an uninterrupted run."""
    work = tmp_path_factory.mktemp("whole") / "work"
    assert main(arguments(squad, work, *RANKERS)) == 0
    return work


def figures(work: Path) -> list[dict[str, str]]:
    with lzma.open(work / "report" / "values.csv.xz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_report_has_every_ranker_condition_and_finding(finished: Path) -> None:
    page = (finished / "report" / "README.md").read_text(encoding="utf-8")

    assert "its figures mean nothing" in page
    assert "learn from 6 questions, each read once" in page
    assert "Heads that read tokens" in page
    frozen, whole = page.partition("## Encoder and aggregator trained")[::2]
    assert "by a bootstrap over questions and seeds, with" in frozen
    assert "by a bootstrap over questions (of one seed, so that it does not hold for others), with" in whole
    for name in RANKERS:
        title = CONTENDERS[name].title
        assert f"\n| {title} | 0." in whole or f"\n| {title} | 1." in whole
        assert f"\n| {title} | 0." in frozen or f"\n| {title} | 1." in frozen
    assert "| PARADE Avg | as AvgP" in frozen
    for part in (frozen, whole):
        assert "FirstP is at chance on Far, zero-shot. | its MRR is within" in part
        assert "| not measured |" in part  # PARADE Attn is left out
        assert "of 1 findings are confirmed" in part
    assert (finished / "report" / "mrr-by-place.png").stat().st_size > 10_000

    pairs = all_pairs(paper_models())
    for track in ("frozen", "whole"):
        gains = measured_gains([(finished / "report" / f"accuracy-{track}.json", "Biased")], pairs)
        assert gains["avgp-bert"].source == "measured: Biased"

    rows = figures(finished)
    assert {row["condition"] for row in rows} == {
        "biased", "far", "harder", "natural", "place 1", "place 2", "place 3", "place 4"
    }  # fmt: skip
    assert {row["seed"] for row in rows if row["track"] == "frozen"} == {"0", "1", "2"}
    # The first 10 questions, 6 of them at every position, and 6 about articles, for each stage and seed.
    of_seed = 2 * (10 * 3 + 6 * 4 + 6)
    of_track = Counter(row["track"] for row in rows if row["ranker"] == "neural-model1")
    assert of_track == {"whole": of_seed, "frozen": 3 * of_seed}


def test_a_ranker_that_reads_positions_is_trained_by_bias(squad: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    chosen = ["--rankers", "firstp", RAND]
    assert main(["--quick", "--squad", str(squad), "--work", str(work), *chosen]) == 0

    page = (work / "report" / "README.md").read_text(encoding="utf-8")
    assert "## By bias in training" in page
    assert "Heads that read tokens" not in page
    doses = [row for row in figures(work) if row["track"] == "doses"]
    assert {row["ranker"] for row in doses} == {RAND}
    kept: dict[str, dict[str, list[float]]] = {dose: {} for dose in DOSES}
    for row in doses:
        kept[row["trained_on"]].setdefault(row["condition"], []).append(float(row["reciprocal_rank"]))
    for dose, of_places in kept.items():
        means = (fmean(of_places[f"place {place}"]) for place in range(1, 5))
        assert f"\n| {dose} | {' | '.join(f'{mean:.3f}' for mean in means)} | " in page


def test_a_mean_of_passages_does_not_heed_their_places(finished: Path) -> None:
    by_place: dict[str, list[tuple[str, ...]]] = {}
    for row in figures(finished):
        if row["ranker"] == "avgp" and row["condition"].startswith("place "):
            rest = row["track"], row["trained_on"], row["seed"], row["query_id"], row["reciprocal_rank"]
            by_place.setdefault(row["condition"], []).append(rest)

    assert len(by_place) == 4
    # Two stages, one seed and three on vectors, six questions.
    assert len(by_place["place 1"]) == 2 * (1 + 3) * 6
    assert all(each == by_place["place 1"] for each in by_place.values())


def test_a_killed_run_goes_on_with_the_same_figures(squad: Path, finished: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    command = [sys.executable, "-m", "farrank_experiments", *arguments(squad, work, *KILLED)]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # The process is killed as the second of FirstP's own steps begins.
        assert any("FirstP, encoder and all, on Far …" in line for line in process.stdout)
        process.kill()
    kept = (work / "passages" / "ranker" / "model.safetensors").stat().st_mtime_ns
    assert not (work / "report").exists()

    assert main(arguments(squad, work, *KILLED)) == 0

    assert (work / "passages" / "ranker" / "model.safetensors").stat().st_mtime_ns == kept
    assert figures(work) == [row for row in figures(finished) if row["ranker"] in KILLED]


def test_finished_work_is_reported_again_at_once(
    squad: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = figures(finished)
    fewer = arguments(squad, finished, "firstp", "avgp")

    assert main([*fewer, "--whole-seeds", "0", "--out", str(tmp_path / "report")]) == 0

    said = capsys.readouterr().out
    assert said.count("already done") == 5
    assert "…" not in said
    expected = [row for row in before if row["track"] == "frozen" and row["ranker"] in ("firstp", "avgp")]
    assert figures(tmp_path) == expected


def test_an_encoder_that_exists_is_taken_and_gives_the_same_figures(
    squad: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, encoder = tmp_path / "work", finished / "passages" / "ranker"
    given = ["--quick", "--squad", str(squad), "--work", str(work), "--rankers", "firstp", "avgp"]

    assert main([*given, "--encoder", str(encoder)]) == 0

    assert f"The encoder of {encoder}: " in capsys.readouterr().out
    page = (work / "report" / "README.md").read_text(encoding="utf-8")
    assert f"that of the ranker `{encoder}`" in page
    expected = [
        row for row in figures(finished) if row["track"] == "frozen" and row["ranker"] in ("firstp", "avgp")
    ]
    assert figures(work) == expected


def test_an_encoder_of_another_kind_is_refused_before_anything_is_done(
    squad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--quick", "--squad", str(squad), "--work", str(tmp_path / "work")]

    assert main([*given, "--encoder", "embedded"]) == 1
    assert "--encoder embedded: its encoder does not use mean pooling" in capsys.readouterr().err
    assert main([*given, "--encoder", "embedded:maxp"]) == 1
    assert "--encoder embedded:maxp: its backbone or tokenizer is not " in capsys.readouterr().err
    assert not (tmp_path / "work" / "data").exists()


def test_missing_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--squad", str(tmp_path), "--work", str(tmp_path / "work")]) == 1

    said = capsys.readouterr().err
    assert said.startswith(f"farrank_experiments: {tmp_path / 'passages.jsonl.gz'}: No such file")
    assert said.count("\n") == 1
