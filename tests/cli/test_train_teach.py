"""`farrank train teach` writes a file that `farrank train` learns from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.commands import Outcome

pytestmark = pytest.mark.usefixtures("one_thread")

Farrank = Callable[..., "Outcome"]
WORDS = ["river", "engine", "violin", "harbour"]
JUDGED = ("--queries", "q.tsv", "--qrels", "qrels", "--candidates", "run.trec", "--collection", "docs.jsonl")


@pytest.fixture
def teach(
    farrank: Farrank, tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Farrank:
    """Teach in a folder with a few documents of words, queries of one word each, and two rankers."""
    texts = [f"{WORDS[number % 4]} and some other words {number}" for number in range(8)]
    docs = [json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)]
    (tmp_path / "docs.jsonl").write_text("".join(docs))
    (tmp_path / "q.tsv").write_text("".join(f"q{n}\t{word}\n" for n, word in enumerate(WORDS)))
    (tmp_path / "qrels").write_text("".join(f"q{n} 0 d{d} 1\n" for n in range(4) for d in (n, n + 4)))
    run = [f"q{n} Q0 d{d} {d + 1} {-d} bm25\n" for n in range(4) for d in range(8)]
    (tmp_path / "run.trec").write_text("".join(run))
    (tmp_path / "triples.tsv").write_text("river\tthe river\tthe violin\n" * 2)
    for name in ("maxp", "maxsim"):
        shutil.copytree(tiny_rankers[name], tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: farrank("train", "teach", *arguments)


def test_a_ranker_teaches_another(teach: Farrank, farrank: Farrank) -> None:
    outcome = teach(
        "maxp", *JUDGED, "--negatives", 4, "--negatives-from", 7, "--out", "taught.jsonl", "--cpu"
    )
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out == "taught.jsonl: 24 documents scored by maxp\n"
    lines = [json.loads(line) for line in Path("taught.jsonl").read_text().splitlines()]
    assert [line["query"] for line in lines] == WORDS
    assert {(len(line["pos_scores"]), len(line["neg_scores"])) for line in lines} == {(2, 4)}
    assert all("words 7" not in text for line in lines for text in line["neg"])
    settings = ("--loss", "kl", "--negatives", 4, "--accumulation", 2, "--cpu")
    learned = farrank(
        "train", "--from", "maxsim", "--examples", "taught.jsonl", *settings, "--out", "student"
    )
    assert learned.exit_code == 0, learned.err
    report = json.loads(Path("student/seed-0/training.json").read_text())
    assert (report["settings"]["loss"], report["steps"]) == ("kl", 2)


def test_the_seed_draws_the_negatives(teach: Farrank) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        outcome = teach("maxsim", *JUDGED, "--negatives", 2, "--seed", seed, "--out", name, "--cpu")
        assert outcome.exit_code == 0, outcome.err
    first, again, other = (Path(name).read_text() for name in "abc")
    assert first == again != other


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("maxp",),
            "train teach: give one of --queries with --qrels, --candidates and --collection; --triples; ",
        ),
        (("maxp", *JUDGED[:4]), "--queries: needs --candidates, --collection"),
        (("maxp", "--triples", "triples.tsv", "--negatives-from", 5), "--negatives-from: needs --candidates"),
        (("maxp", "--triples", "triples.tsv", *JUDGED[6:]), "--collection: needs --queries"),
        (("maxp", "--triples", "none.tsv"), "none.tsv: No such file or directory"),
        (("nowhere", "--triples", "triples.tsv"), "nowhere is neither a folder nor a model from"),
    ],
)
def test_problems_end_with_one_line(teach: Farrank, flags: tuple[object, ...], message: str) -> None:
    outcome = teach(*flags, "--out", "new.jsonl", "--cpu")
    assert outcome.exit_code == 2
    assert outcome.err.splitlines()[-1].startswith(f"farrank: {message}")
    assert not Path("new.jsonl").exists()


def test_a_file_that_exists_stays(teach: Farrank) -> None:
    outcome = teach("maxp", "--triples", "triples.tsv", "--out", "docs.jsonl", "--cpu")
    assert outcome.exit_code == 2
    assert outcome.err == "farrank: --out docs.jsonl: exists; it must be a new file\n"
