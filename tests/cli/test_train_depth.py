"""`farrank train depth` writes a plan that the server reads, or nothing at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrank_training.depth_calibration
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.files.open import open_ranker

if TYPE_CHECKING:
    from support.commands import Outcome

pytestmark = pytest.mark.usefixtures("one_thread")

Farrank = Callable[..., "Outcome"]
FILES = ("--queries", "q.tsv", "--qrels", "qrels", "--candidates", "run.trec", "--collection", "docs.jsonl")
DATA = (*FILES, "--keep", "0.9")


@pytest.fixture
def folder(tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of one chunk, so that one chunk of each is enough, and a ranker."""
    numbers = range(80)
    docs = [json.dumps({"id": f"d{n}", "text": f"{'text ' * n} document"}) + "\n" for n in range(6)]
    (tmp_path / "docs.jsonl").write_text("".join(docs))
    (tmp_path / "q.tsv").write_text("".join(f"q{n}\tdocument {n}\n" for n in numbers))
    (tmp_path / "qrels").write_text("".join(f"q{n} 0 d{n % 3} 1\n" for n in numbers))
    run = [f"q{n} Q0 d{d} {d + 1} {-d} bm25\n" for n in numbers for d in range(3)]
    (tmp_path / "run.trec").write_text("".join(run))
    shutil.copytree(tiny_rankers["maxp"], tmp_path / "ranker")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_plan_is_served_and_the_version_stays(farrank: Farrank, folder: Path) -> None:
    before = open_ranker("ranker")
    others = contents(folder / "ranker")
    outcome = farrank("train", "depth", "ranker", *DATA, "--cpu")
    assert outcome.exit_code == 0, outcome.err
    first, second, third = outcome.out.splitlines()
    assert first == "reads 1 chunk of all documents"
    assert re.fullmatch(r"keeps 100\.0% of MRR \(9[1-3]\.\d% to 100\.0%\) on 40 queries", second)
    assert third.startswith("costs 1.00 chunks a document, ")
    after = open_ranker("ranker")
    assert after.spec.depth_plan.rounds == (Round(1.0, 1),)
    assert after.version == before.version
    written = contents(folder / "ranker")
    assert written.pop("depth.json")
    assert written == others
    closed = ("--port=0", "--metrics-port=none", "--device=cpu")
    said = farrank("serve", "--check", "--ranker=mine=ranker", *closed).out
    assert "), reads 1 chunk of all documents, calibrated to keep 90% of MRR\n" in said
    budget = ("--set", "rankers.mine.depth.mode=adaptive", "--set", "rankers.mine.depth.chunks=4")
    said = farrank("serve", "--check", "--ranker=mine=ranker", *closed, *budget).out
    assert "ranker mine" in said
    assert "reads" not in said.partition("ranker mine")[2].partition("\n")[0]


def test_a_copy_leaves_the_ranker_as_it_is(farrank: Farrank, folder: Path) -> None:
    before = contents(folder / "ranker")
    outcome = farrank("train", "depth", "ranker", *DATA, "--cpu", "--out", "deep/copy")
    assert outcome.exit_code == 0, outcome.err
    assert contents(folder / "ranker") == before
    copy, ranker = open_ranker("deep/copy"), open_ranker("ranker")
    assert copy.spec.depth_plan.figures is not None
    assert copy.spec.depth_plan.figures.keep == 0.9
    assert copy.version == ranker.version
    again = farrank("train", "depth", "ranker", *DATA, "--cpu", "--out", "deep/copy")
    assert (again.exit_code, again.err) == (2, "farrank: --out deep/copy: exists; it must be a new folder\n")


def test_nothing_is_written_without_a_confirmed_plan(farrank: Farrank, folder: Path) -> None:
    (folder / "q.tsv").write_text("".join(f"q{n}\tdocument\n" for n in range(49)))
    before = contents(folder / "ranker")
    for more in ([], ["--out", "copy"]):
        outcome = farrank("train", "depth", "ranker", *FILES, "--cpu", *more)
        assert outcome.exit_code == 2
        assert "49 queries have judgements and candidates; to keep 97.0%, calibration needs" in outcome.err
    assert contents(folder / "ranker") == before
    assert not (folder / "copy").exists()


def test_a_source_that_holds_no_plan_needs_out(farrank: Farrank, folder: Path) -> None:
    outcome = farrank("train", "depth", "embedded:maxp", *FILES)
    assert outcome.exit_code == 2
    assert "--out is missing: embedded:maxp is not an artifact" in outcome.err


def test_a_folder_that_appears_meanwhile_is_not_replaced(
    farrank: Farrank, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = farrank_training.depth_calibration.calibrate

    def slow(*given: Any, **named: Any) -> DepthPlan:
        (folder / "copy").mkdir()
        (folder / "copy" / "notes.txt").write_text("mine")
        return read(*given, **named)

    monkeypatch.setattr(farrank_training.depth_calibration, "calibrate", slow)
    outcome = farrank("train", "depth", "ranker", *DATA, "--cpu", "--out", "copy")
    assert outcome.exit_code == 2
    # Lines of progress may come before it.
    assert outcome.err.splitlines()[-1] == "farrank: --out copy: exists; it must be a new folder"
    assert contents(folder / "copy") == {"notes.txt": b"mine"}
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_place_where_nothing_can_be_written_is_refused_before_anything_is_read(
    farrank: Farrank, folder: Path
) -> None:
    outcome = farrank("train", "depth", "absent", *FILES, "--out", "docs.jsonl/copy")
    message = f"farrank: {folder / 'docs.jsonl'}: must be a folder in which files can be written\n"
    assert (outcome.exit_code, outcome.err) == (2, message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_artifact_in_which_nothing_can_be_written_is_refused_before_anything_is_read(
    farrank: Farrank, folder: Path
) -> None:
    (folder / "ranker").chmod(0o555)
    try:
        outcome = farrank("train", "depth", "ranker", *FILES)
    finally:
        (folder / "ranker").chmod(0o755)
    assert outcome.exit_code == 2
    assert "ranker: must be a folder in which files can be written" in outcome.err
