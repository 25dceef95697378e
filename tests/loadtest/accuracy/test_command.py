"""`farrank loadtest accuracy` as a whole, against a real server."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_cli.main import main
from farrank_client import AdaptiveDepth, Client, Document
from farrank_loadtest.accuracy.accuracy_report import Report
from farrank_trec import rank, read_collection, read_run, write_run
from support import forked

if TYPE_CHECKING:
    from farrank_cli.spawn import SpawnedServer
    from support.commands import Outcome
    from support.judged_queries import Files

Accuracy = Callable[..., "Outcome"]


def test_runs_hold_the_scores_that_a_client_gets(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    outcome = accuracy(
        *files.flags(),
        f"--target={server.address}",
        "--ranker=firstp",
        "--ranker=maxp",
        f"--out={tmp_path}/o",
    )

    assert outcome.exit_code == 0
    candidates = read_run(files.candidates)
    texts = read_collection([files.collection], ["rivers", "ships", "bread", "towers", "salt"])
    queries = dict(line.split("\t") for line in files.queries.read_text().splitlines())
    for ranker in ("firstp", "maxp"):
        path = tmp_path / "o" / "runs" / f"{ranker}.trec"
        run = read_run(path)
        # The fourth query has no judgements: it is not reranked, and the table says so.
        assert list(run) == ["q1", "q2", "q3"]
        assert {line.split()[5] for line in path.read_text().splitlines()} == {ranker}
        with Client(server.address) as client:
            for query_id, ranked in run.items():
                asked = [Document(each.doc_id, texts[each.doc_id]) for each in candidates[query_id]]
                ranking = client.rerank(queries[query_id], asked, ranker=ranker)
                assert {each.doc_id: each.score for each in ranked} == {
                    each.id: pytest.approx(each.score, rel=1e-5) for each in ranking.results
                }
    assert "Queries of run.trec not reranked because they have no judgement: 1." in outcome.out


def test_the_table_the_report_and_the_values_agree(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder"

    outcome = accuracy(
        *files.flags(),
        f"--target={server.address}",
        *("--ranker=firstp", "--ranker=mixed=maxp,avgp", f"--run=first={files.candidates}"),
        *("--baseline=firstp", "--measure=MRR", "--measure=nDCG@10", f"--out={out}"),
    )

    assert outcome.exit_code == 0
    assert (out / "accuracy.md").read_text("utf-8") == outcome.out
    table = [line.strip("| ").split("|")[0].strip() for line in outcome.out.splitlines() if line[:1] == "|"]
    assert table[2:] == ["Retriever", "firstp", "mixed", "first"]
    report = Report.read_json(out / "accuracy.json")
    assert set(report.inputs["versions"]) == {"firstp", "maxp", "avgp"}
    retriever, _, mixed, first = report.rows
    # By hand: the relevant document is second for q1, first for q2 (both are relevant) and q3.
    assert retriever.cells["RR"].mean == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert first.cells["RR"].mean == retriever.cells["RR"].mean
    with (out / "per-query.csv").open() as opened:
        values = [float(row["RR"]) for row in csv.DictReader(opened) if row["model"] == "mixed"]
    assert len(values) == 2 * 3
    assert mixed.cells["RR"].mean == pytest.approx(sum(values) / len(values))
    assert mixed.cells["RR"].by_seed == pytest.approx((sum(values[:3]) / 3, sum(values[3:]) / 3))
    assert f"| {_shown(mixed.cells['RR'].mean)}" in outcome.out.replace("**", "")


def test_written_runs_evaluate_to_the_same_without_a_server(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    asked = accuracy(
        *files.flags(),
        f"--target={server.address}",
        "--ranker=firstp",
        "--ranker=maxp",
        f"--out={tmp_path}/o",
    )
    runs = tmp_path / "o" / "runs"

    again = accuracy(
        "--evaluate-only",
        f"--qrels={files.qrels}",
        *(f"--run={name}={runs / name}.trec" for name in ("firstp", "maxp")),
    )

    assert again.exit_code == 0
    rows = [
        line.replace("*", "").split() for line in asked.out.splitlines() if "firstp" in line or "maxp" in line
    ]
    assert rows == [
        line.replace("*", "").split() for line in again.out.splitlines() if "firstp" in line or "maxp" in line
    ]


def test_candidates_from_the_servers_own_index(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    outcome = accuracy(
        *("--index=things", "--k=2", f"--queries={files.queries}", f"--qrels={files.qrels}"),
        *(f"--target={server.address}", "--ranker=maxp", f"--out={tmp_path}/o"),
    )

    assert outcome.exit_code == 0
    first_stage, reranked = (
        read_run(tmp_path / "o" / "runs" / f"{name}.trec") for name in ("first-stage", "maxp")
    )
    with Client(server.address) as client:
        ranking = client.search_and_rerank("what is bread made of", index="things", k=2, ranker="maxp")
    assert [each.doc_id for each in reranked["q2"]] == [each.id for each in ranking.results]
    assert {each.doc_id: each.score for each in first_stage["q2"]} == {
        each.id: pytest.approx(each.first_stage_score) for each in ranking.results
    }
    assert all(len(documents) <= 2 for documents in first_stage.values())


def test_parts_are_averaged_as_one_test_set(accuracy: Accuracy, files: Files, tmp_path: Path) -> None:
    (tmp_path / "other.qrels").write_text("q1 0 towers 1\n")

    outcome = accuracy(
        *("--evaluate-only", f"--qrels={files.qrels}", f"--qrels={tmp_path}/other.qrels"),
        *(f"--run=first={files.candidates}+{files.candidates}", "--measure=RR", f"--out={tmp_path}/o"),
    )

    assert outcome.exit_code == 0
    report = Report.read_json(tmp_path / "o" / "accuracy.json")
    assert report.queries == 4
    assert report.rows[0].cells["RR"].mean == pytest.approx((1 / 2 + 1 + 1 + 1 / 3) / 4)
    combined = accuracy("--combine", tmp_path / "o" / "accuracy.json")
    assert (combined.exit_code, combined.out) == (0, outcome.out)


def test_a_depth_cuts_runs_that_are_there_like_the_candidates(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    outcome = accuracy(
        *(*files.flags(), "--k=1", f"--target={server.address}", "--ranker=maxp", "--measure=RR"),
        *(f"--run=first={files.candidates}", f"--out={tmp_path}/o"),
    )

    assert outcome.exit_code == 0, outcome.err
    report = Report.read_json(tmp_path / "o" / "accuracy.json")
    # By hand: the relevant document of q1 is second, that of q2 and q3 first.
    assert {row.model: row.cells["RR"].mean for row in report.rows}["first"] == pytest.approx(2 / 3)
    assert {row.cells["RR"].mean for row in report.rows} == {report.rows[0].cells["RR"].mean}
    assert "Cut to depth 1 (--k): first, which has 4." in outcome.out
    assert "unequal" not in outcome.out


def test_each_depth_is_a_model_beside_full_reading_and_the_selector(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    out = tmp_path / "o"
    flags = [
        *(*files.flags(), f"--target={server.address}", "--ranker=firstp", "--ranker=maxp"),
        *("--depth=all", "--depth=adaptive", "--depth=adaptive,chunks=1", "--selector=embedded"),
        *("--baseline=firstp", "--baseline=maxp adaptive,chunks=1=selector", "--measure=RR", f"--out={out}"),
    ]

    outcome = accuracy(*flags)

    assert outcome.exit_code == 0, outcome.err
    report = Report.read_json(out / "accuracy.json")
    # FirstP reads one chunk and cannot be adaptive: it is one model.
    names = ["firstp", "maxp all", "maxp adaptive", "maxp adaptive,chunks=1"]
    assert [row.model for row in report.rows] == ["Retriever", *names, "selector"]
    assert [row.full for row in report.rows] == ["", "", "", "maxp all", "maxp all", ""]
    assert [row.baseline for row in report.rows][1:] == ["", "firstp", "firstp", "selector", ""]
    rows = {row.model: row.cells["RR"] for row in report.rows}
    kept = rows["maxp adaptive"].kept
    assert kept is not None
    assert kept.low <= kept.share <= kept.high
    assert kept.share == pytest.approx(rows["maxp adaptive"].mean / rows["maxp all"].mean)
    assert f"; kept {kept.share:.1%} [" in outcome.out
    texts = read_collection([files.collection], ["rivers", "ships", "bread", "towers", "salt"])
    run = read_run(out / "runs" / "maxp@adaptive,chunks=1.trec")
    with Client(server.address) as client:
        ranking = client.rerank(
            "what is bread made of",
            [Document(each.doc_id, texts[each.doc_id]) for each in run["q2"]],
            ranker="maxp",
            depth=AdaptiveDepth(chunks=1),
        )
    assert {each.chunks_read for each in ranking.results} == {1}
    assert [each.doc_id for each in run["q2"]] == [each.id for each in ranking.results]


def test_a_resumed_run_asks_only_for_what_is_missing(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    out = tmp_path / "o"
    flags = [*files.flags(), f"--target={server.address}", "--ranker=maxp", "--measure=RR", f"--out={out}"]
    assert accuracy(*flags).exit_code == 0
    path = out / "runs" / "maxp.trec"
    whole = read_run(path)
    # A run that ended early: one query is missing, and one has the other order.
    swapped = [each.score for each in reversed(whole["q1"])]
    changed = {
        "q1": rank("q1", [(each.doc_id, score) for each, score in zip(whole["q1"], swapped, strict=True)]),
        "q2": whole["q2"],
    }
    write_run(path, changed, tag="maxp")

    assert "already holds accuracy.json" in accuracy(*flags).err
    assert accuracy(*flags, "--resume").exit_code == 0

    resumed = read_run(path)
    assert {query_id: resumed[query_id] for query_id in changed} == changed
    # Another batch moves a score in its last digits.
    assert {each.doc_id: each.score for each in resumed["q3"]} == {
        each.doc_id: pytest.approx(each.score, rel=1e-5) for each in whole["q3"]
    }
    assert list(resumed) == ["q1", "q2", "q3"]
    (out / "runs" / "versions.json").write_text('{"maxp": "another"}')
    other = accuracy(*flags, "--resume")
    assert other.exit_code == 2
    assert "the runs of maxp are of version another" in other.err


def test_unequal_depths_are_reported(accuracy: Accuracy, files: Files, tmp_path: Path) -> None:
    lines = files.candidates.read_text().splitlines(keepends=True)
    shallow = tmp_path / "shallow.trec"
    shallow.write_text("".join(line for line in lines if line.split()[3] in "12"))
    flags = ("--evaluate-only", f"--qrels={files.qrels}", f"--run=deep={files.candidates}")

    both = accuracy(*flags, f"--run=shallow={shallow}")
    assert "Ranked to unequal depths (at most, documents a query): deep 4, shallow 2." in both.out
    assert "unequal" not in accuracy(*flags).out
    cut = accuracy(*flags, f"--run=shallow={shallow}", "--k=2")
    assert "unequal" not in cut.out
    assert "Cut to depth 2 (--k): deep, which has 4." in cut.out


@pytest.mark.parametrize(
    ("flags", "exit_code", "says"),
    [
        (["--ranker=nope"], 1, "has no ranker 'nope', only firstp, maxp, avgp"),
        (["--ranker=maxp", "--target=127.0.0.1:1"], 3, "127.0.0.1:1: cannot connect to 127.0.0.1:1"),
        (["--ranker=maxp", "--target=192.0.2.1:50051"], 2, "192.0.2.1 is not this machine's loopback"),
        (["--ranker=maxp", "--baseline=firstp"], 2, "no model is called 'firstp', only Retriever, maxp"),
        (["--ranker=maxp", "--measure=nDGC@10"], 2, "measure 'nDGC@10': unknown"),
        (["--ranker=maxp", "--qrels=more.txt"], 2, "needs one file of each kind; there are: --qrels 2"),
        (["--ranker=maxp", "--index=things"], 2, "give either --candidates with --collection, or --index"),
        (["--ranker=maxp", "--evaluate-only"], 2, "--evaluate-only calls no server"),
        ([], 2, "nothing to compare"),
        (["--combine", "accuracy.json"], 2, "--combine: prints only a table of the reports"),
        (["--run=x=nowhere.trec"], 2, "give --ranker to rerank with, or --evaluate-only"),
        (["--run=x=nowhere.trec", "--evaluate-only"], 2, "nowhere.trec: No such file or directory"),
    ],
)
def test_problems_end_with_one_line(
    accuracy: Accuracy,
    files: Files,
    server: SpawnedServer,
    tmp_path: Path,
    flags: list[str],
    exit_code: int,
    says: str,
) -> None:
    outcome = accuracy(*files.flags(), f"--target={server.address}", f"--out={tmp_path}/o", *flags)

    assert outcome.exit_code == exit_code
    assert says in outcome.err
    assert outcome.err.startswith("farrank: ")
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_missing_documents_end_it_or_are_left_out_and_reported(
    accuracy: Accuracy, files: Files, server: SpawnedServer, tmp_path: Path
) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(files.collection.read_text().splitlines(keepends=True)[:3]))
    flags = [*files.flags(), f"--collection={few}", f"--target={server.address}", "--ranker=maxp"]
    flags.remove(f"--collection={files.collection}")

    refused = accuracy(*flags, f"--out={tmp_path}/o")
    assert refused.exit_code == 2
    assert "2 of 5 candidate documents are not in the collection: salt, towers (--skip-missing" in refused.err

    # The same folder: the refused command left nothing there.
    skipped = accuracy(*flags, f"--out={tmp_path}/o", "--skip-missing")
    assert skipped.exit_code == 0
    assert "2 of 5 candidate documents are not in the collection: salt, towers." in skipped.out
    assert {each.doc_id for each in read_run(tmp_path / "o/runs/maxp.trec")["q2"]} == {
        "bread",
        "rivers",
        "ships",
    }

    again = accuracy(*flags, f"--out={tmp_path}/o", "--skip-missing")
    assert again.exit_code == 2
    assert "o: already holds accuracy.json; name another folder" in again.err


def test_a_folder_with_runs_is_taken_even_without_a_report(
    accuracy: Accuracy, files: Files, tmp_path: Path
) -> None:
    """A rerun without judgements, or an interrupted run, leaves such a folder."""
    kept = tmp_path / "runs" / "x.trec"
    kept.parent.mkdir()
    kept.write_text("q1 Q0 rivers 1 1 x\n")

    flags = ("--target=127.0.0.1:1", "--ranker=maxp", f"--out={tmp_path}")
    outcome = accuracy(*files.flags(), *flags)

    assert outcome.exit_code == 2
    assert outcome.err == f"farrank: {tmp_path}: already holds runs; name another folder\n"
    assert kept.read_text() == "q1 Q0 rivers 1 1 x\n"


def test_a_malformed_line_is_named(accuracy: Accuracy, files: Files, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("q1 0 rivers 1\nq1 rivers 1\n")

    outcome = accuracy("--evaluate-only", f"--qrels={tmp_path}/bad.txt", f"--run=first={files.candidates}")

    assert outcome.exit_code == 2
    assert outcome.err == (
        f"farrank: {tmp_path}/bad.txt:2: 3 columns; qrels have 4: query_id iteration doc_id grade\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_the_queries_that_were_done(
    server: SpawnedServer, files: Files, tmp_path: Path, number: signal.Signals
) -> None:
    """There are thousands of copies of a query, more than are done before the interruption."""
    many = 20_000
    (tmp_path / "q.tsv").write_text("".join(f"{query}\twhere does it end\n" for query in range(many)))
    (tmp_path / "run").write_text("".join(f"{query} Q0 rivers 1 1 t\n" for query in range(many)))
    command = [sys.executable, "-m", "farrank_cli", "loadtest", "accuracy", f"--target={server.address}"]
    command += [
        f"--candidates={tmp_path}/run",
        f"--queries={tmp_path}/q.tsv",
        f"--collection={files.collection}",
    ]
    command += ["--ranker=maxp", "--ranker=firstp", f"--out={tmp_path}/o"]

    with forked.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        _wait_until_asked(server)
        process.send_signal(number)
        out, err = process.communicate(timeout=280)

    assert process.returncode == 130
    assert out == ""
    run = read_run(tmp_path / "o" / "runs" / "maxp.trec")
    assert 0 < len(run) < many
    assert err.splitlines()[-1] == f"{tmp_path}/o/runs/maxp.trec: only {len(run):,} of {many:,} queries"
    assert "Traceback" not in err


def _wait_until_asked(server: SpawnedServer) -> None:
    """Wait until the server has answered many calls of this test."""

    def answered() -> float:
        with urllib.request.urlopen(server.metrics_url) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("farrank_requests_total{"))

    before, ends_s = answered(), time.monotonic() + 120
    while answered() < before + 20:
        assert time.monotonic() < ends_s, "the server is not asked"
        time.sleep(0.05)


def _shown(mean: float) -> str:
    return f"{mean:.3f}"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--alpha", "3"], "argument --alpha: 3 is not above 0 and below 1"),
        (["--k", "0"], "argument --k: 0 is not between 1 and 2147483647"),
        (["--depth", "10"], "argument --depth: '10' is not all, adaptive, or adaptive with one budget"),
    ],
)
def test_numbers_have_bounds(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["loadtest", "accuracy", *flags])
    assert says in capsys.readouterr().err
