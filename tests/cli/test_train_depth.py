"""`farrank train depth` writes a plan that the server reads, or nothing at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_rankers.depth.plan import Round
from farrank_rankers.files.open import open_ranker

if TYPE_CHECKING:
    from support.commands import Outcome

pytestmark = pytest.mark.usefixtures("one_thread")

Farrank = Callable[..., "Outcome"]
DATA = ("--queries", "q.tsv", "--qrels", "qrels", "--candidates", "run.trec", "--collection", "docs.jsonl")


@pytest.fixture
def folder(tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of one chunk, so that one chunk of each is enough, and a ranker."""
    numbers = range(60)
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
    assert second == "keeps 100.0% of MRR (100.0% to 100.0%) on 30 queries"
    assert third.startswith("costs 1.00 chunks a document, ")
    after = open_ranker("ranker")
    assert after.spec.depth.rounds == (Round(1.0, 1),)
    assert after.version == before.version
    written = contents(folder / "ranker")
    assert written.pop("depth.json")
    assert written == others
    closed = ("--port=0", "--metrics-port=none", "--device=cpu")
    said = farrank("serve", "--check", "--ranker=mine=ranker", *closed).out
    assert "), reads 1 chunk of all documents, calibrated to keep 97% of MRR\n" in said


def test_a_copy_leaves_the_ranker_as_it_is(farrank: Farrank, folder: Path) -> None:
    before = contents(folder / "ranker")
    outcome = farrank("train", "depth", "ranker", *DATA, "--keep", 0.9, "--cpu", "--out", "copy")
    assert outcome.exit_code == 0, outcome.err
    assert contents(folder / "ranker") == before
    copy, ranker = open_ranker("copy"), open_ranker("ranker")
    assert copy.spec.depth.figures is not None
    assert copy.spec.depth.figures.keep == 0.9
    assert copy.version == ranker.version
    again = farrank("train", "depth", "ranker", *DATA, "--cpu", "--out", "copy")
    assert (again.exit_code, again.err) == (2, "farrank: --out copy: exists; it must be a new folder\n")


def test_nothing_is_written_without_a_confirmed_plan(farrank: Farrank, folder: Path) -> None:
    (folder / "q.tsv").write_text("".join(f"q{n}\tdocument\n" for n in range(49)))
    before = contents(folder / "ranker")
    for more in ([], ["--out", "copy"]):
        outcome = farrank("train", "depth", "ranker", *DATA, "--cpu", *more)
        assert outcome.exit_code == 2
        assert "49 queries have judgements and candidates; calibration needs at least 50" in outcome.err
    assert contents(folder / "ranker") == before
    assert not (folder / "copy").exists()


def test_a_source_that_holds_no_plan_needs_out(farrank: Farrank, folder: Path) -> None:
    outcome = farrank("train", "depth", "embedded:maxp", *DATA)
    assert outcome.exit_code == 2
    assert "--out is missing: embedded:maxp is not an artifact" in outcome.err
