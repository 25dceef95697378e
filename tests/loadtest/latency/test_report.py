"""Reports of failed sweeps: nothing measured, all calls failed, names that need escaping in HTML."""

import csv
import html
import json
from pathlib import Path

import pytest

from farrank_loadtest.latency.latency_report import verdict, write_folder
from farrank_loadtest.latency.plan import Objective, Plan
from farrank_loadtest.latency.recorder import Recorder
from farrank_loadtest.latency.sweep import Sweep, judge
from farrank_loadtest.loops import OK, Sample

SETTING = {
    "command": "farrank loadtest",
    "started_at": "2026-01-01T00:00:00+00:00",
    "farrank": "0.1.0",
    "machine": "a machine",
    "target": "t:1",
    "depth": "adaptive",
    "workload": "10 calls",
}
PLAN = Plan("open", Objective(99, 0.1), warm_up_s=0, duration_s=10, repeats=1)


def recorded(*samples: Sample) -> Recorder:
    recorder = Recorder(0, 10, 0.1)
    for sample in samples:
        recorder(sample)
    recorder.ended(10, 1)
    return recorder


def test_an_interruption_before_anything_was_measured_leaves_readable_files(tmp_path: Path) -> None:
    write_folder(tmp_path, Sweep(PLAN, (), interrupted=True, note=None), SETTING)
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["interrupted"], results["steps"], results["highest_that_holds"]) == (True, [], None)
    assert "Interrupted" in (tmp_path / "report.html").read_text()
    assert not list(tmp_path.glob("*.png"))


def test_a_load_without_answers_is_reported_and_not_drawn(tmp_path: Path) -> None:
    status = "<b>HTTP 500</b>"
    steps = (
        judge(PLAN, 1, [recorded(Sample(0.5, 0.5, 0.55, OK))]),
        judge(PLAN, 2, [recorded(*(Sample(t, t, t + 1, status) for t in (1.0, 2.0)))]),
    )
    write_folder(tmp_path, Sweep(PLAN, steps, interrupted=False, note="a cap"), SETTING)
    first, second = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert (first["held"], second["held"]) == (True, False)
    assert second["statuses"] == {status: 2}
    assert second["latency_s"]["count"] == 0
    with (tmp_path / "results.csv").open(newline="") as file:
        assert [row["failed"] for row in csv.DictReader(file)] == ["0", "0", "2", "2"]
    page = (tmp_path / "report.html").read_text()
    assert status not in page
    assert "&lt;b&gt;HTTP 500" in page
    assert "The sweep ended early: a cap." in page
    # Percentiles that depend on a single answer are grey.
    assert page.count('class="thin"') >= 5
    assert (tmp_path / "latency.png").exists()
    # No stages were reported.
    assert not (tmp_path / "stages.png").exists()


def test_a_load_that_was_cut_short_decides_nothing(tmp_path: Path) -> None:
    """The calls without an answer yet may have been the late ones."""
    answered = recorded(Sample(0.5, 0.5, 0.55, OK))
    cut = judge(PLAN, 2, [answered], undecided=True)
    assert cut.held is None
    alone = Sweep(PLAN, (cut,), interrupted=True, note=None)
    assert verdict(alone).startswith("Interrupted: ")
    assert (alone.highest, alone.limited_by) == (None, None)

    found = Sweep(PLAN, (judge(PLAN, 1, [answered]), cut), interrupted=True, note=None)
    assert found.highest is not None
    assert found.highest.amount == 1
    write_folder(tmp_path, found, SETTING)
    assert [step["held"] for step in json.loads((tmp_path / "results.json").read_text())["steps"]] == [
        True,
        None,
    ]
    assert "undecided" in (tmp_path / "report.html").read_text()


def test_failures_and_a_warm_cache_are_reported_before_the_table(tmp_path: Path) -> None:
    fine = Sample(0.5, 0.5, 0.55, OK, counts={"chunks": 10, "cached_chunks": 6})
    late = Sample(1.0, 1.0, 9.0, "DEADLINE_EXCEEDED", "needs about 94 s")
    steps = (judge(PLAN, 1, [recorded(fine)]), judge(PLAN, 2, [recorded(fine, late, late, late)]))
    found = Sweep(PLAN, steps, interrupted=False, note=None)
    said = verdict(found)
    assert "At 2 calls/s, 3 of 4 failed: DEADLINE_EXCEEDED 3 (needs about 94 s)." in said
    assert "Up to 60% of the chunks came from the server's document cache" in said
    write_folder(tmp_path, found, SETTING)
    assert said in html.unescape((tmp_path / "report.html").read_text())
    step = json.loads((tmp_path / "results.json").read_text())["steps"][1]
    assert step["messages"] == {"DEADLINE_EXCEEDED": "needs about 94 s"}
    assert step["counts"] == {"chunks": 10, "cached_chunks": 6}
    with (tmp_path / "results.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert (row["statuses"], row["cached_share"]) == ("DEADLINE_EXCEEDED:3 OK:1", "0.6")

    cold = Sample(0.5, 0.5, 0.55, OK, counts={"chunks": 10, "cached_chunks": 0})
    plain = verdict(Sweep(PLAN, (judge(PLAN, 1, [recorded(cold)]),), interrupted=False, note=None))
    assert "cache" not in plain
    assert "failed" not in plain


@pytest.mark.parametrize("amounts", [[5.0], [1.0, 2.0], [0.5, 400.0]])
def test_any_range_of_loads_can_be_drawn(tmp_path: Path, amounts: list[float]) -> None:
    samples = [Sample(n / 10, n / 10 + 0.05, n / 10 + 0.06, OK, stages_s={"queue": 0.0}) for n in range(90)]
    steps = tuple(judge(PLAN, amount, [recorded(*samples), recorded(*samples)]) for amount in amounts)
    assert all(step.generator_bound for step in steps)
    write_folder(tmp_path, Sweep(PLAN, steps, interrupted=False, note=None), SETTING)
    assert len(list(tmp_path.glob("*.png"))) == 3
    assert "generator-bound" in (tmp_path / "report.html").read_text()
