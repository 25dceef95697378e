"""The page, and the command that makes it again: from kept files alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from farrank_bench.reproduce.__main__ import PAGE, main
from farrank_bench.reproduce.cells import CELLS, Figures, Kept
from farrank_bench.reproduce.table import page, score
from farrank_trec import rank, write_qrels, write_run

QUERIES = [f"q{number}" for number in range(12)]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Lucene finds the answer in the second place, maxsim in the first."""
    kept = Kept(tmp_path)
    (tmp_path / "judgements").mkdir()
    write_qrels(kept.judgements("demo"), {query_id: {"right": 1} for query_id in QUERIES})
    for name, order in (("demo.lucene", ["wrong", "right"]), ("demo.maxsim", ["right", "wrong"])):
        run = {key: rank(key, [(each, -place) for place, each in enumerate(order)]) for key in QUERIES}
        write_run(kept.run(CELLS[name]), run, name)
        figures = Figures(
            cell=CELLS[name],
            questions=12,
            rounds=3,
            calls={"1": 12, "16": 36},
            p50_ms={"1": (5.0, 4.0, 7.0), "16": (50.0, 40.0, 70.0)},
            p99_ms={"1": 9.5, "16": 99.5},
            bytes_a_document=1234.4,
            index_s=77.7,
            seconds=120.0,
            runs_on="torch fp32, cpu",
            date="2026-11-28",
            machine="a quiet machine, 2 cores",
            versions="farrank 9.9",
        )
        figures.write(kept.figures(figures.cell))
    return kept


def test_cells_are_compared_with_their_collections_first(kept: Kept) -> None:
    report = score(kept, kept.finished())
    lucene, maxsim = report.rows
    assert (lucene.baseline, maxsim.baseline) == ("", "demo.lucene")
    assert (lucene.cells["RR"].mean, maxsim.cells["RR"].mean) == (0.5, 1.0)
    p = maxsim.cells["RR"].randomisation_p
    assert p is not None
    assert p < 0.01


def test_the_page_has_the_machine_of_the_measurement_and_every_figure(kept: Kept) -> None:
    text = page(kept, "python -m farrank_bench.reproduce --out x", ["squad.lucene is not measured: no data."])
    assert "- machine: a quiet machine, 2 cores\n- versions: farrank 9.9\n" in text
    assert "squad.lucene is not measured: no data." in text
    assert "4 minutes in all" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| demo.maxsim | Farrank")]
    assert row == (
        "| demo.maxsim | Farrank | BM25 | embedded:maxsim | all | 100 | torch fp32, cpu | 5.0 (4.0 to 7.0) | "
        "9.5 | 50.0 (40.0 to 70.0) | 99.5 | 12 / 36 | 3 | 1,234 | 78 |"
    )
    assert "`python -m farrank_bench.reproduce --out FOLDER --cells demo.lucene`" in text
    assert "## squad" not in text


def test_a_folder_is_scored_again_without_data_or_inference(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {key: rank(key, [("wrong", 2.0), ("right", 1.0)]) for key in QUERIES}
    write_run(kept.run(CELLS["demo.maxsim"]), run, "changed")
    assert main(["--out", str(kept.folder), "--score"]) == 0
    written = (kept.folder / PAGE).read_text(encoding="utf-8")
    assert written.strip() == capsys.readouterr().out.strip()
    (quality,) = [
        line for line in written.splitlines() if line.startswith("| demo.maxsim") and "BM25" not in line
    ]
    assert "0.500" in quality


def test_finished_cells_are_skipped_and_missing_data_is_named(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(kept.folder), "--cells", "demo.maxsim", "squad.maxsim"]) == 1
    said = capsys.readouterr().out
    assert "demo.maxsim: finished before" in said
    assert "squad.maxsim is not measured: squad: --data names no folder." in said


def test_a_folder_of_other_settings_is_refused(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    figures = kept.finished()[1]
    other = replace(figures, cell=replace(figures.cell, way=replace(figures.cell.way, candidates=3)))
    other.write(kept.figures(figures.cell))
    for flags in (["--cells", "demo.maxsim"], ["--score"]):
        assert main(["--out", str(kept.folder), *flags]) == 2
        assert "other settings" in capsys.readouterr().err
    figures.write(kept.figures(figures.cell))
    kept.run(figures.cell).unlink()
    assert main(["--out", str(kept.folder), "--score"]) == 2
    assert "demo.maxsim.trec: No such file" in capsys.readouterr().err
