"""`farrank rerank --run`: whole runs in this process, with interruptions and wrong input."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank import Reranker
from farrank_trec import rank, read_run, write_run
from support.commands import Outcome
from support.field_files import write_lines
from support.judged_queries import CANDIDATES, QUERIES, TEXTS

Farrank = Callable[..., Outcome]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "reranking-runs.md"
QUESTIONS = QUERIES | {"unjudged": "salt for bread"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run, topics and a collection."""
    first = {
        query_id: rank(query_id, ((doc_id, -float(place)) for place, doc_id in enumerate(doc_ids)))
        for query_id, doc_ids in CANDIDATES.items()
    }
    write_run(tmp_path / "bm25.trec", first, "bm25")
    write_lines(tmp_path / "topics.tsv", [f"{query_id}\t{text}" for query_id, text in QUESTIONS.items()])
    write_lines(tmp_path / "docs.jsonl", [{"id": doc_id, "text": text} for doc_id, text in TEXTS.items()])
    return tmp_path


@pytest.fixture
def given(folder: Path, tiny_rankers: dict[str, Path]) -> list[str]:
    """The flags of the command."""
    return [
        *("rerank", f"--run={folder / 'bm25.trec'}", f"--queries={folder / 'topics.tsv'}"),
        *(f"--collection={folder / 'docs.jsonl'}", f"--local={tiny_rankers['maxp']}"),
        f"--out={folder / 'maxp.trec'}",
    ]


def test_the_run_is_the_rankers(
    farrank: Farrank, given: list[str], folder: Path, tiny_rankers: dict[str, Path]
) -> None:
    outcome = farrank(*given, "--tag=mine")
    assert (outcome.exit_code, outcome.out) == (0, "")
    assert re.search(r"maxp\.trec: 4 queries, [0-9.]+ documents/s", outcome.err)
    run = read_run(folder / "maxp.trec")
    assert list(run) == list(CANDIDATES)
    with Reranker(str(tiny_rankers["maxp"])) as reranker:
        for query_id, ranked in run.items():
            asked = {doc_id: TEXTS[doc_id] for doc_id in CANDIDATES[query_id]}
            own = {each.id: each.score for each in reranker.rank(QUESTIONS[query_id], asked).results}
            assert {each.doc_id: each.score for each in ranked} == pytest.approx(own, abs=1e-5)
    assert (folder / "maxp.trec").read_text().splitlines()[0].endswith(" mine")
    assert not list(folder.glob("*.partial"))
    assert "exists; name another file" in farrank(*given).err
    assert "is complete" in farrank(*given, "--resume").err


def test_an_index_has_the_texts_and_tokens(
    farrank: Farrank, given: list[str], folder: Path, tiny_rankers: dict[str, Path]
) -> None:
    ranker, index = str(tiny_rankers["maxp"]), str(folder / "index")
    assert farrank("index", folder / "docs.jsonl", "--tokens", ranker, "--out", index).exit_code == 0
    assert farrank(*given).exit_code == 0
    here = [each for each in given if not each.startswith(("--collection", "--out"))]
    assert farrank(*here, f"--index={index}", f"--out={folder / 'of-index.trec'}").exit_code == 0
    config = {"rankers": {"mine": {"source": ranker}}, "first_stage": {"indexes": {"docs": {"path": index}}}}
    (folder / "farrank.yaml").write_text(json.dumps(config))
    named = [f"--config={folder / 'farrank.yaml'}", "--local=mine", "--index=docs"]
    assert farrank(*here, *named, f"--out={folder / 'named.trec'}").exit_code == 0
    expected = read_run(folder / "maxp.trec")
    for name in ("of-index.trec", "named.trec"):
        for query_id, ranked in read_run(folder / name).items():
            assert [each.doc_id for each in ranked] == [each.doc_id for each in expected[query_id]]
    with (folder / "bm25.trec").open("a") as run:
        run.write("q1 Q0 nowhere 9 -9 x\n")
    lacks = farrank(*here, f"--index={index}", f"--out={folder / 'lacks.trec'}")
    assert lacks.exit_code == 1
    assert "bm25.trec: query 'q1': documents: index local has no documents[3] 'nowhere'" in lacks.err


def test_depth_and_pool(farrank: Farrank, given: list[str], folder: Path) -> None:
    pool = [f"{query_id} 0 {doc_id} 1" for query_id, doc_ids in CANDIDATES.items() for doc_id in doc_ids[:2]]
    write_lines(folder / "qrels.txt", pool)
    rest = [each for each in given if not each.startswith("--run")]
    assert farrank(*rest, f"--pool={folder / 'qrels.txt'}", "--depth=adaptive,chunks=1").exit_code == 0
    run = read_run(folder / "maxp.trec")
    assert {name: {each.doc_id for each in ranked} for name, ranked in run.items()} == {
        name: set(doc_ids[:2]) for name, doc_ids in CANDIDATES.items()
    }


def test_one_query_in_this_process(farrank: Farrank, folder: Path, tiny_rankers: dict[str, Path]) -> None:
    local = ["--local", tiny_rankers["maxp"], "--set", "window=32", "--set", "stride=32"]
    outcome = farrank("rerank", *local, "--query", "ships", "--jsonl", folder / "docs.jsonl", "--json")
    assert outcome.exit_code == 0
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert {each["id"] for each in found} == set(TEXTS)
    wrong = farrank("rerank", *local, "--set", "window=0", "--query", "x", "--jsonl", folder / "docs.jsonl")
    assert wrong.exit_code == 2
    assert "rankers.local.window: 0 is not allowed" in wrong.err
    assert "(--set window=0)" in wrong.err


def test_a_killed_command_is_resumed(given: list[str], folder: Path) -> None:
    queries = 400
    write_lines(
        folder / "bm25.trec",
        [f"k{number} Q0 {doc_id} 1 1 x" for number in range(queries) for doc_id in ("rivers", "ships")],
    )
    write_lines(folder / "topics.tsv", [f"k{number}\tships of number {number}" for number in range(queries)])
    command = [sys.executable, "-m", "farrank_cli", *given]
    partial = folder / "maxp.trec.partial"

    def lines() -> int:
        return partial.read_bytes().count(b"\n") if partial.exists() else 0

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as killed:
        until = time.monotonic() + 240
        while lines() < 20 and killed.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    finished = lines() - 1
    assert 0 < finished < queries
    assert not (folder / "maxp.trec").exists()
    told = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert told.returncode == 2
    assert f"holds {finished} queries of a run that was interrupted: resume it" in told.stderr
    before = partial.read_bytes()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=280, check=False)
    assert resumed.returncode == 0, resumed.stderr
    run = read_run(folder / "maxp.trec")
    assert list(run) == [f"k{number}" for number in range(queries)]
    for line in before.splitlines()[1:]:
        kept = json.loads(line)
        assert {each.doc_id: each.score for each in run[kept["query_id"]]} == dict(kept["documents"])


WRONG = [
    ("bm25.trec", "q1 Q0 rivers one 1 x", "bm25.trec:1: rank 'one' must be a whole number"),
    ("bm25.trec", "q9 Q0 rivers 1 1 x", "bm25.trec: 1 of 1 queries of the run have no text"),
    ("topics.tsv", "q1 where", "topics.tsv:1: 1 columns; queries have 2"),
    ("docs.jsonl", '{"id": "rivers"}', "docs.jsonl:1: 'text' or 'contents' or 'body' is missing"),
    ("docs.jsonl", '{"id": "a", "text": "b"}', "docs.jsonl: 5 of 5 candidate documents are not in the coll"),
]


@pytest.mark.parametrize(("file", "line", "said"), WRONG, ids=[said[:18] for *_, said in WRONG])
def test_wrong_files_are_named_with_their_line(
    farrank: Farrank, given: list[str], folder: Path, file: str, line: str, said: str
) -> None:
    write_lines(folder / file, [line])
    outcome = farrank(*given)
    assert outcome.exit_code == 2
    assert said in outcome.err
    assert not (folder / "maxp.trec").exists()


def test_missing_texts_may_be_left_out(farrank: Farrank, given: list[str], folder: Path) -> None:
    lines = (folder / "docs.jsonl").read_text().splitlines()
    write_lines(folder / "docs.jsonl", [line for line in lines if '"bread"' not in line])
    outcome = farrank(*given, "--skip-missing")
    assert outcome.exit_code == 0
    assert "not reranked: 1 of 5 candidate documents are not in the collection: bread" in outcome.err
    assert all(
        each.doc_id != "bread" for ranked in read_run(folder / "maxp.trec").values() for each in ranked
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--run=x"], "--run: needs --local RANKER; `farrank loadtest accuracy` reranks runs by a server"),
        (["--local=x", "--run=x"], "--run: needs --queries and --out"),
        (["--local=x", "--run=x", "--query=q"], "--query: is for one query: leave out --run and --pool"),
        (["--query=q", "--k=3", "file"], "--k: needs --run, or --pool"),
        (["--query=q", "--set=a=b", "file"], "--set: needs --local RANKER"),
        (["--local=x", "--ranker=y", "--query=q", "file"], "--ranker: names a ranker of a server"),
        (["--local=x"], "rerank: give --query with documents, or --run with --queries"),
        (["--local=x", "--run=x", "--queries=y", "--out=z"], "--run: give either --collection or --index"),
    ],
)
def test_flags_that_do_not_go_together(farrank: Farrank, flags: list[str], said: str) -> None:
    outcome = farrank("rerank", *flags)
    assert outcome.exit_code == 2
    assert said in outcome.err


def test_the_documented_session(folder: Path) -> None:
    first, again = re.findall(r"```bash\n(farrank .*)\n```", PAGE.read_text(encoding="utf-8"))
    for command, said in ((first, "maxp.trec: 4 queries"), (again, "maxp.trec: is complete")):
        words = [sys.executable, "-m", "farrank_cli", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
        assert said in done.stderr
    best = {query_id: ranked[0].doc_id for query_id, ranked in read_run(folder / "maxp.trec").items()}
    assert (best["q1"], best["q3"]) == ("rivers", "ships")
