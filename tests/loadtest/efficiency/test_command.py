"""`farrank loadtest efficiency` as a whole: servers are started, measured and ended."""

from __future__ import annotations

import csv
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_cli.main import main
from farrank_loadtest.accuracy.accuracy_report import Cell, ModelRow, Report
from farrank_loadtest.efficiency.efficiency_report import CSV, PNG, SVG, TABLE
from farrank_loadtest.efficiency.run_times import FILE, Results
from farrank_rankers import papers
from support.efficiency_runs import start, tiny_backbones

if TYPE_CHECKING:
    from support.commands import Outcome

Efficiency = Callable[..., "Outcome"]


# Enough that a signal after the first round arrives before the last.
ROUNDS = 8


@pytest.fixture(scope="module")
def flags(collection: Path, tiny_rankers: dict[str, Path]) -> list[str]:
    """Return the flags of all these runs."""
    return [
        *(f"--collection={collection}", f"--rounds={ROUNDS}", "--documents=2", "--lengths=1400,600"),
        f"--trained=avgp-bert={tiny_rankers['avgp']}",
    ]


@pytest.fixture(scope="module")
def two(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with two measured rankers, and the output on stdout and stderr."""
    folder = tmp_path_factory.mktemp("two") / "new" / "folder"
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(papers, "BACKBONES", tiny_backbones())
        command = ["loadtest", "efficiency", *flags, "--rankers=maxp-bert,longp-e5-4k", f"--out={folder}"]
        exit_code = main(command)
    assert exit_code == 0, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


def test_rankers_are_measured_against_their_firstp(two: tuple[Path, str, str]) -> None:
    folder, out, err = two

    results = Results.read(folder)
    assert results.conditions.documents == {"a": 1400, "b": 600}
    maxp, e5 = results.measured["maxp-bert"], results.measured["longp-e5-4k"]
    # 14 and 6 windows of 150 tokens at strides of 100, against one chunk of 477 for each document.
    assert (maxp.ranker_timed.inputs, maxp.firstp_timed.inputs) == (14 + 6, 2)
    assert maxp.firstp_timed.padded_tokens == 2 * (3 + 32 + 477)
    assert (maxp.ranker_longest, maxp.firstp_longest) == (3 + 32 + 150, 3 + 32 + 477)
    for timed in (maxp.ranker_timed, maxp.firstp_timed):
        assert len(timed.client_s) == ROUNDS
        assert all(0 < mine < whole for mine, whole in zip(timed.encoder_s, timed.client_s, strict=True))
    # The last round encoded query and documents: the cache had nothing.
    assert (e5.ranker_timed.inputs, e5.firstp_timed.inputs) == (1 + 2, 1 + 2)
    assert out == (folder / TABLE).read_text("utf-8")
    assert [line.split()[1] for line in out.splitlines()[2:4]] == ["maxp-bert", "longp-e5-4k"]
    assert all((folder / name).stat().st_size > 1000 for name in (PNG, SVG))
    assert "1 of 2: maxp-bert and firstp-bert\n" in err
    assert f"round {ROUNDS} of {ROUNDS}: firstp-bert " in err
    assert f"{folder}: 2 of 2 rankers measured\n" in err


@pytest.mark.usefixtures("tiny_papers")
def test_resuming_measures_the_rest_alone(
    efficiency: Efficiency, flags: list[str], two: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "o"
    shutil.copytree(two[0], folder)
    flags = [*flags, f"--out={folder}"]

    outcome = efficiency(*flags, "--resume", "--rankers=maxp-bert,avgp-bert")

    assert outcome.exit_code == 0, outcome.err
    assert "1 of 2: avgp-bert and firstp-bert" in outcome.err
    assert "2 of 2: maxp-bert is already measured" in outcome.err
    assert "Trained weights: avgp-bert." in outcome.out
    before, after = Results.read(two[0]).measured, Results.read(folder).measured
    assert {name: after[name] for name in before} == before
    # The given artifact has disjoint chunks of 477 tokens.
    assert after["avgp-bert"].ranker_timed.inputs == 3 + 2
    with (folder / CSV).open(newline="") as file:
        assert [row["ranker"] for row in csv.DictReader(file)] == ["avgp-bert", "maxp-bert", "longp-e5-4k"]

    refused = efficiency(*flags)
    assert (refused.exit_code, refused.out) == (2, "")
    assert "already holds efficiency.json; --resume continues from it" in refused.err
    other = efficiency(*flags, "--resume", "--rounds=3")
    assert other.exit_code == 2
    assert f"was measured with rounds {ROUNDS}, not 3" in other.err


@pytest.mark.usefixtures("tiny_papers")
def test_an_adaptive_depth_is_a_point_of_its_own(
    efficiency: Efficiency, flags: list[str], two: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, accuracy = tmp_path / "o", tmp_path / "accuracy.json"
    shutil.copytree(two[0], folder)
    cells = {"maxp-bert all": 0.25, "maxp-bert adaptive": 0.24}
    rows = (ModelRow(name, "firstp-bert", {"RR": Cell(0.5, (0.5,), gain)}) for name, gain in cells.items())
    Report("a", 1, 0.05, ("RR",), tuple(rows), (), {}).write_json(accuracy)

    given = ("--resume", "--rankers=maxp-bert", "--depth=adaptive", f"--accuracy={accuracy}:RR")
    outcome = efficiency(*flags, *given, f"--out={folder}")

    assert outcome.exit_code == 0, outcome.err
    assert "2 of 2: maxp-bert adaptive and firstp-bert" in outcome.err
    adaptive = Results.read(folder).measured["maxp-bert adaptive"]
    # A chunk of each document, and 3 more of the better one.
    assert (adaptive.ranker_timed.inputs, adaptive.firstp_timed.inputs) == (2 + 3, 2)
    with (folder / CSV).open(newline="") as file:
        found = {row["ranker"]: row for row in csv.DictReader(file)}
    assert (found["maxp-bert"]["gain_percent"], found["maxp-bert"]["gain"]) == ("25.0", "measured")
    assert (found["maxp-bert adaptive"]["gain_percent"], found["maxp-bert adaptive"]["title"]) == (
        "24.0",
        "MaxP, adaptive",
    )


@pytest.mark.parametrize(
    ("number", "after"),
    [(signal.SIGINT, "2 of 2: sump-bert"), (signal.SIGTERM, f"round 1 of {ROUNDS}")],
    ids=["ctrl-c-while-a-ranker-is-made", "sigterm-between-rounds"],
)
def test_an_interruption_keeps_what_was_measured(
    flags: list[str],
    two: tuple[Path, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    after: str,
) -> None:
    folder, temporary = tmp_path / "o", tmp_path / "tmp"
    shutil.copytree(two[0], folder)
    for name in (TABLE, CSV, PNG, SVG):
        (folder / name).unlink()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    with start(*flags, "--rankers=maxp-bert,sump-bert", "--resume", f"--out={folder}") as process:
        assert process.stderr is not None
        assert any(line.startswith(after) for line in process.stderr)
        process.send_signal(number)
        out, err = process.communicate(timeout=280)

    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == f"{folder}: 1 of 2 rankers measured; --resume continues from there"
    assert "Traceback" not in err
    assert list(Results.read(folder).measured) == ["maxp-bert", "longp-e5-4k"]
    assert sorted(path.name for path in folder.iterdir()) == sorted((FILE, TABLE, CSV, PNG, SVG))
    assert list(temporary.glob("farrank-*")) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["--rankers=maxp-bert,nope"],
            "ranker 'nope': the papers have no ranker of this name, only avgp-bert",
        ),
        (
            ["--rankers=firstp-bert"],
            "ranker 'firstp-bert': is a FirstP, which is measured with every other",
        ),
        (["--trained=maxp-bert"], "--trained maxp-bert: must be NAME=FOLDER"),
        (["--trained=nope=x"], "trained ranker 'nope': the papers have no ranker of this name"),
        (["--trained=maxp-bert=nowhere"], "nowhere/ranker.json: No such file or directory"),
        (["--trained=a=x", "--trained=a=y"], "--trained a=y: a is given twice"),
        (["--accuracy=nowhere.json"], "nowhere.json: No such file or directory"),
        (["--accuracy=nothing"], "accuracy 'nothing': must be FILE.json, or FILE:MEASURE"),
        (["--documents=5"], "passages.jsonl: holds 4 documents; 5 are needed"),
        (["--collection=nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["--lengths=600,1432"], "--lengths: 1432 is above 1431, the most that the papers' models read"),
        (["--depth=all"], "--depth: all is always measured; name an adaptive depth"),
        (["--depth=adaptive"], "depth adaptive: --accuracy has no gain of a model named 'RANKER adaptive'"),
        (["--depth=adaptive", "--depth=adaptive"], "depth adaptive: is given twice"),
        (["--rounds=0"], "--rounds: 0 is not between 1 and 2147483647"),
    ],
)
def test_problems_are_reported_before_anything_is_measured(
    efficiency: Efficiency, collection: Path, tmp_path: Path, given: list[str], says: str
) -> None:
    outcome = efficiency(f"--collection={collection}", f"--out={tmp_path}/o", *given)

    assert outcome.exit_code == 2
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "o").exists()


def test_another_familys_weights_are_refused(
    efficiency: Efficiency, collection: Path, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    folder = tiny_rankers["avgp"]

    outcome = efficiency(f"--collection={collection}", f"--out={tmp_path}/o", f"--trained=maxp-bert={folder}")

    assert outcome.exit_code == 2
    assert outcome.err == f"farrank: {folder}/ranker.json: family is avgp; maxp-bert is maxp\n"


@pytest.mark.usefixtures("tiny_papers")
def test_a_server_that_cannot_start_ends_it_and_says_so(
    efficiency: Efficiency, collection: Path, tmp_path: Path
) -> None:
    outcome = efficiency(
        f"--collection={collection}", f"--out={tmp_path}/o", "--rankers=maxp-bert", "--device=tpu"
    )

    assert outcome.exit_code == 2
    assert "farrank: firstp-bert, maxp-bert: farrank serve ended with status 2" in outcome.err
    assert f"{tmp_path}/o: 0 of 1 rankers measured; --resume continues from there" in outcome.err


def test_without_the_extras_it_says_what_to_install(
    efficiency: Efficiency, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "farrank_loadtest.efficiency.efficiency_report", raising=False)

    outcome = efficiency(f"--collection={collection}", f"--out={tmp_path}/o")

    assert outcome.exit_code == 2
    assert outcome.err == (
        "farrank: farrank loadtest efficiency needs the loadtest, server and embedded extras: "
        "pip install 'farrank[loadtest,server,embedded]' (no module 'matplotlib')\n"
    )
