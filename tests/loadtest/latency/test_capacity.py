"""`farrank loadtest capacity` on the command line, from reports of `farrank loadtest latency`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farrank_loadtest.latency.latency_report import as_json
from farrank_loadtest.latency.plan import Objective, Plan
from farrank_loadtest.latency.recorder import Recorder
from farrank_loadtest.latency.sweep import StepResult, Sweep
from farrank_loadtest.loops import OK, Sample

if TYPE_CHECKING:
    from farrank_cli.spawn import SpawnedServer
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]
HALF_S = Objective(99, 0.5)


def step(
    load: float, per_s: float, latency_s: float, held: bool | None, *, bound: bool = False, cached: int = 0
) -> StepResult:
    """Make a load step of ten seconds with this rate of answers."""
    recorder = Recorder(0.0, 10.0, None)
    for number in range(round(per_s * 10)):
        due_s = number / per_s
        counts = {"chunks": 4, "cached_chunks": cached}
        recorder(Sample(due_s, due_s, due_s + latency_s, OK, counts=counts))
    return StepResult(load, recorder, (recorder,), held, bound)


def report(folder: Path, plan: Plan, *steps: StepResult, interrupted: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    sweep = Sweep(plan, steps, interrupted, None)
    (folder / "results.json").write_text(json.dumps(as_json(sweep, {})))
    return folder


@pytest.fixture
def climbed(tmp_path: Path) -> Path:
    """A climb in which one replica holds its objective at 60 calls/s, with 8 in flight, but not at 80."""
    steps = [step(40, 40, 0.1, True), step(60, 60, 0.13333, True), step(80, 75, 0.6, False)]
    return report(tmp_path / "latency", Plan("open", HALF_S), *steps)


@pytest.mark.parametrize(
    ("flags", "number", "words"),
    [
        (["--rate", "500"], 10, ["60 calls/s with p99 within 500 ms, planned at 1", "500 calls/s: 9, and 1"]),
        (["--rate", "600", "--spare", "0"], 10, ["600 calls/s: 10, and 0 spare"]),
        (["--rate", "500", "--utilisation", "0.5", "--spare", "2"], 19, ["planned at 0.5", "17, and 2"]),
        (["--callers", "100"], 14, ["calls at the same time with p99", "100 calls at the same time: 13"]),
        (["--rate", "1", "--spare", "0"], 1, []),
    ],
)
def test_replicas_by_an_objective_that_holds(
    farrank: Farrank, climbed: Path, flags: list[str], number: int, words: list[str]
) -> None:
    outcome = farrank("loadtest", "capacity", climbed, *flags)

    assert (outcome.exit_code, outcome.out) == (0, f"{number}\n"), outcome.err
    assert all(each in outcome.err for each in words), outcome.err
    assert "note" not in outcome.err
    assert farrank("loadtest", "capacity", climbed / "results.json", *flags).out == outcome.out


def test_without_an_objective_it_is_a_share_of_the_most(farrank: Farrank, tmp_path: Path) -> None:
    steps = [step(1, 10, 0.1, None), step(4, 40, 0.1, None), step(16, 40, 0.4, None)]
    folder = report(tmp_path / "closed", Plan("closed", None), *steps)

    outcome = farrank("loadtest", "capacity", folder, "--rate", "270", "--spare", "0")
    assert outcome.out == "10\n"
    assert "calls/s at most, planned at 0.7 of that" in outcome.err
    assert "note" not in outcome.err
    outcome = farrank("loadtest", "capacity", folder, "--callers", "28", "--spare", "0")
    assert outcome.out == "10\n"
    assert "4 calls at the same time at most" in outcome.err


def test_facts_for_capacity_planning(farrank: Farrank, tmp_path: Path) -> None:
    only = step(60, 60, 0.1, True, cached=2)
    folder = report(tmp_path / "a", Plan("open", HALF_S), only, interrupted=True)
    outcome = farrank("loadtest", "capacity", folder, "--rate", "1")
    assert "note: no load broke p99 within 500 ms: one replica may answer more" in outcome.err
    assert "note: the test ended early" in outcome.err
    assert "note: 50% of the chunks came from the server's cache" in outcome.err

    steps = [step(60, 60, 0.1, True), step(90, 60, 0.1, False, bound=True)]
    folder = report(tmp_path / "b", Plan("open", HALF_S), *steps)
    outcome = farrank("loadtest", "capacity", folder, "--rate", "1")
    assert "note: the load generator was the limit: one replica may answer more" in outcome.err

    folder = report(tmp_path / "c", Plan("open", None), step(60, 60, 0.1, None))
    outcome = farrank("loadtest", "capacity", folder, "--rate", "1")
    assert "note: the highest load was answered, too: one replica may answer more" in outcome.err


def refusal(farrank: Farrank, report: Path, *flags: str) -> str:
    outcome = farrank("loadtest", "capacity", report, *(flags or ("--rate", "1")))
    assert outcome.exit_code != 0
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    error: str = outcome.err
    return error


def test_reports_that_say_nothing_are_refused(farrank: Farrank, climbed: Path, tmp_path: Path) -> None:
    assert "missing/results.json: No such file" in refusal(farrank, _folder(tmp_path / "missing"))
    other = tmp_path / "other.json"
    for text, words in (
        ("query,documents", "other.json: not JSON; name results.json of `farrank loadtest latency`"),
        ("[]", "other.json: not written by `farrank loadtest latency` in format 1"),
        ('{"format": 9, "highest_that_holds": 1}', "not written by `farrank loadtest latency` in format 1"),
        ('{"format": 1, "highest_that_holds": 1}', "other.json: incomplete report"),
    ):
        other.write_text(text)
        assert words in refusal(farrank, other)
    none = report(tmp_path / "none", Plan("open", HALF_S), step(60, 60, 0.9, False))
    assert "none/results.json: no load holds p99 within 500 ms; measure lower" in refusal(farrank, none)
    empty = report(tmp_path / "empty", Plan("open", HALF_S))
    assert "no call was answered" in refusal(farrank, empty)
    assert "one of the arguments --rate --callers is required" in refusal(farrank, climbed, "--spare", "1")
    assert "--rate" in refusal(farrank, climbed, "--rate", "0")
    assert "--utilisation" in refusal(farrank, climbed, "--rate", "1", "--utilisation", "1.5")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_report_that_was_just_measured(farrank: Farrank, server: SpawnedServer, tmp_path: Path) -> None:
    out: Any = tmp_path / "measured"
    flags = ["--synthetic", "uniform:10:50", "--documents", "2", "--callers", "1", "--repeats", "1"]
    times = ["--warm-up-s", "0", "--duration-s", "1", "--target", server.address, "--ranker", "maxp"]
    assert farrank("loadtest", "latency", *flags, *times, "--out", out).exit_code == 0
    per_s = json.loads((out / "results.json").read_text())["steps"][0]["goodput_per_s"]

    rate = f"{7 * per_s - 1e-3}"
    outcome = farrank("loadtest", "capacity", out, "--rate", rate, "--spare", "0", "--utilisation", "1")
    assert outcome.out == "7\n", outcome.err
