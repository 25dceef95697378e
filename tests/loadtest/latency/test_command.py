"""`farrank loadtest latency` from the command to the last file, against a real server."""

from __future__ import annotations

import csv
import html
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.image
import pytest

from farrank_cli.spawn import SpawnedServer, spawned_server
from support import forked

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]

STAGES = {"total", "tokenization", "queue", "inference", "aggregation"}
TINY = ["--synthetic", "uniform:10:200", "--documents", "3", "--calls", "10"]
SHORT = ["--warm-up-s", "0.5", "--duration-s", "2", "--repeats", "2"]


def results_of(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return loaded


def wait_for_answers(server: SpawnedServer, more: int) -> None:
    """Wait until the server has answered `more` calls from now on."""

    def answered() -> float:
        with urllib.request.urlopen(server.metrics_url, timeout=60) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("farrank_requests_total{"))

    before, ends_s = answered(), time.monotonic() + 120
    while answered() < before + more:
        assert time.monotonic() < ends_s, "the server is not asked"
        time.sleep(0.02)


def test_an_open_loop_leaves_figures_charts_and_a_page(
    farrank: Farrank, server: SpawnedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other work of this machine must not decide whether the generator was the limit.
    monkeypatch.setattr("farrank_loadtest.latency.sweep.LAG_FLOOR_S", 60.0)
    out = tmp_path / "new" / "folder"
    load = ["--rates", "8,2", "--objective", "p50=9s", "--ranker", "maxp", "--arrivals", "constant"]
    outcome = farrank("loadtest", "latency", "--target", server.address, "--out", out, *TINY, *SHORT, *load)

    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("8 calls/s is the highest load tried that holds p50 within 9000 ms.")
    assert "2 calls/s: " in outcome.err
    assert "10 calls from synthetic uniform:10:200, seed 1; documents a call: 3;" in outcome.err

    results = results_of(out)
    assert results["interrupted"] is False
    assert results["highest_that_holds"] == 8
    assert results["objective"] == {"percent": 50.0, "bound_s": 9.0}
    assert [(step["load"], step["offered"], len(step["repeats"])) for step in results["steps"]] == [
        (2, 8, 2),
        (8, 32, 2),
    ]
    for step in results["steps"]:
        latency, stages = step["latency_s"], step["stages_s"]
        assert step["statuses"] == {"OK": step["offered"]}
        # A busy machine may answer late, and then answers of the warm-up count as well.
        assert 0 < step["goodput_per_s"] <= 1.25 * step["load"]
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
        assert stages.keys() == STAGES
        # The stages are within the call, as the server measured them.
        assert 0 < stages["inference"]["p50"] <= stages["total"]["p50"] < latency["p50"]
        assert step["generator"]["busy"] > 0

    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["load"], row["repeat"]) for row in rows] == [
        (load, repeat) for load in ("2.0", "8.0") for repeat in ("all", "1", "2")
    ]
    assert float(rows[0]["p99_ms"]) == pytest.approx(results["steps"][0]["latency_s"]["p99"] * 1e3, abs=0.01)
    assert float(rows[0]["server_inference_p50_ms"]) > 0

    for name in ("latency.png", "stages.png", "percentiles.png"):
        image = matplotlib.image.imread(out / name)
        assert min(image.shape[:2]) > 500
        # The image has lines in several colours, not an empty frame.
        assert len({tuple(pixel) for pixel in image[::5, ::5, :3].reshape(-1, 3).tolist()}) > 10

    page = (out / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "p50 within 9000 ms" in page
    assert "<td>32</td>" in page


def test_a_closed_loop_counts_callers(farrank: Farrank, server: SpawnedServer, tmp_path: Path) -> None:
    options = ["--callers", "2,1", "--repeats", "1", "--warm-up-s", "0", "--duration-s", "1.5"]
    outcome = farrank("loadtest", "latency", "--target", server.address, "--out", tmp_path, *TINY, *options)
    assert outcome.exit_code == 0, outcome.err
    results = results_of(tmp_path)
    assert [(step["load"], step["unit"], step["held"]) for step in results["steps"]] == [
        (1, "callers", None),
        (2, "callers", None),
    ]
    assert all(step["goodput_per_s"] > 0 for step in results["steps"])
    assert results["arrivals"] is None


def test_calls_may_be_of_a_priority(farrank: Farrank, server: SpawnedServer, tmp_path: Path) -> None:
    def answered(priority: str) -> float:
        name = f'farrank_priority_queue_duration_seconds_count{{priority="{priority}"}}'
        with urllib.request.urlopen(server.metrics_url) as page:
            (count,) = re.findall(rf"^{re.escape(name)} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(count)

    before = [answered("interactive"), answered("batch")]
    options = [
        "--callers",
        "1",
        "--repeats",
        "1",
        "--warm-up-s",
        "0",
        "--duration-s",
        "1",
        "--priority",
        "batch",
    ]
    outcome = farrank("loadtest", "latency", "--target", server.address, "--out", tmp_path, *TINY, *options)
    assert outcome.exit_code == 0, outcome.err
    (step,) = results_of(tmp_path)["steps"]
    # One more for the first call, which is sent alone.
    assert answered("batch") - before[1] == step["statuses"]["OK"] + 1
    assert answered("interactive") == before[0]

    asked = ["--target", f"cohere:{server.http_url}", "--out", tmp_path / "x"]
    refused = farrank("loadtest", "latency", *asked, *TINY, *options)
    assert refused.exit_code == 2
    assert "only Farrank over gRPC takes a --priority" in refused.err


def test_both_endpoints_of_a_server_are_measured_in_one_run(
    farrank: Farrank, server: SpawnedServer, tmp_path: Path
) -> None:
    targets = [server.address, f"cohere:{server.http_url}", f"tei:{server.http_url}"]
    asked = [option for target in targets for option in ("--target", target)]
    options = ["--callers", "1,2", "--repeats", "1", "--warm-up-s", "0", "--duration-s", "1.5"]
    outcome = farrank("loadtest", "latency", *asked, "--out", tmp_path, *TINY, *options)
    assert outcome.exit_code == 0, outcome.err
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition("-")[0] for name in folders] == ["1", "2", "3"]
    for name, target in zip(folders, targets, strict=True):
        results = results_of(tmp_path / name)
        assert [step["load"] for step in results["steps"]] == [1, 2]
        assert all(step["statuses"].keys() == {"OK"} for step in results["steps"])
        assert results["target"] == target
    # Each load runs against all targets before the next load.
    order = [line.partition(":")[0] for line in outcome.err.splitlines() if "good/s" in line]
    assert order == ["1 caller"] * 3 + ["2 callers"] * 3
    said = [line for line in outcome.out.splitlines() if " times as many calls as " in line]
    assert len(said) == 4
    assert all(f"times as many calls as {server.address}; its median call takes" in line for line in said)

    refused = farrank(
        "loadtest", "latency", *asked, "--out", tmp_path / "x", *TINY, "--climb", "1", "--objective", "p99=1s"
    )
    assert refused.exit_code == 2
    assert "--climb: takes one --target" in refused.err


def test_rankers_and_depths_are_measured_in_one_run(
    farrank: Farrank, server: SpawnedServer, tmp_path: Path
) -> None:
    asked = ["--target", server.address, "--ranker", "firstp", "--ranker", "maxp", "--depth", "all"]
    asked += ["--depth", "adaptive,chunks=1", "--out", str(tmp_path), "--synthetic", "constant:400"]
    options = ["--callers", "1", "--repeats", "1", "--warm-up-s", "0", "--duration-s", "0.8"]
    outcome = farrank("loadtest", "latency", *asked, "--documents", "2", "--calls", "3", *options)
    assert outcome.exit_code == 0, outcome.err
    results = [results_of(folder) for folder in sorted(tmp_path.iterdir())]
    # FirstP cannot be adaptive: it is measured once, and is the first of the comparison.
    kinds = [("firstp", ""), ("maxp", "all"), ("maxp", "adaptive,chunks=1")]
    assert [(each["ranker"], each["depth"]) for each in results] == kinds
    chunks = [each["steps"][0]["counts"]["chunks"] / each["steps"][0]["good"] for each in results]
    assert chunks[0] == chunks[2] == 2 < chunks[1]
    said = [line for line in outcome.out.splitlines() if " times as many calls as " in line]
    assert len(said) == 2
    assert all(f"times as many calls as {server.address} firstp; its median" in line for line in said)

    http = ["--target", f"tei:{server.http_url}", "--depth", "all", "--out", tmp_path / "x"]
    refused = farrank("loadtest", "latency", *http, *TINY, *options)
    assert refused.exit_code == 2
    assert "only Farrank over gRPC takes a --depth" in refused.err


def test_a_climb_ends_where_the_objective_breaks(
    farrank: Farrank, server: SpawnedServer, tmp_path: Path
) -> None:
    """No server answers within a microsecond."""
    options = ["--climb", "8", "--refine", "1", "--objective", "p99=0.001ms", "--repeats", "1"]
    options += ["--warm-up-s", "0", "--duration-s", "1"]
    outcome = farrank("loadtest", "latency", "--target", server.address, "--out", tmp_path, *TINY, *options)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("No load tried holds p99 within 0.001 ms.")
    results = results_of(tmp_path)
    assert [(step["load"], step["held"]) for step in results["steps"]] == [(5, False), (8, False)]
    assert results["highest_that_holds"] is None
    assert all(step["good"] == 0 and step["goodput_per_s"] == 0 for step in results["steps"])


def test_refused_calls_are_counted_by_status(farrank: Farrank, server: SpawnedServer, tmp_path: Path) -> None:
    """The first call is valid, but the second is not: its query has no token."""
    workload = tmp_path / "calls.jsonl"
    lines = [{"query": "fine", "documents": ["d"]}, {"query": "\u0000", "documents": ["d"]}]
    workload.write_text("\n".join(map(json.dumps, lines)))
    options = ["--rates", "10", "--arrivals", "constant", "--repeats", "1", "--warm-up-s", "0"]
    options += ["--duration-s", "2", "--workload", str(workload), "--objective", "p99=9s"]
    outcome = farrank("loadtest", "latency", "--target", server.address, "--out", tmp_path / "out", *options)
    assert outcome.exit_code == 0, outcome.err
    (step,) = results_of(tmp_path / "out")["steps"]
    assert step["statuses"] == {"OK": 10, "INVALID_ARGUMENT": 10}
    assert (step["held"], step["good"]) == (False, 10)
    message = step["messages"]["INVALID_ARGUMENT"]
    assert "query" in message
    failures = f"10 of 20 failed: INVALID_ARGUMENT 10 ({message})"
    assert f"{failures}, the 10 answered: p50 " in outcome.err
    assert f"At 10 calls/s, {failures}." in outcome.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td>INVALID_ARGUMENT</td>" in page.replace(' class="text"', "")
    assert message in html.unescape(page)


def test_calls_that_repeat_and_hit_the_document_cache_are_warned_of(
    farrank: Farrank, server: SpawnedServer, tmp_path: Path
) -> None:
    """Two calls repeat, with a ranker whose encodings of documents are cached."""
    options = ["--calls", "2", "--callers", "1", "--repeats", "1", "--warm-up-s", "0", "--duration-s", "1.5"]
    options += ["--ranker", "biencoder", "--out", str(tmp_path)]
    outcome = farrank("loadtest", "latency", "--target", server.address, *TINY, *options)
    assert outcome.exit_code == 0, outcome.err
    assert "of the chunks came from the server's document cache" in outcome.out
    (step,) = results_of(tmp_path)["steps"]
    assert 0 < step["counts"]["cached_chunks"] <= step["counts"]["chunks"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_what_was_measured(
    server: SpawnedServer, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "farrank_cli", "loadtest", "latency", "--target", server.address]
    command += ["--out", str(tmp_path), *TINY, "--rates", "5,10,20", "--repeats", "1", "--warm-up-s", "0"]
    command += ["--duration-s", "4"]
    with forked.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("5 calls/s: ") for line in process.stderr)
        wait_for_answers(server, 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=280)
    assert process.returncode == 130, err
    assert "Interrupted" in out
    assert "Traceback" not in err
    results = results_of(tmp_path)
    assert results["interrupted"] is True
    whole, part = results["steps"]
    assert (whole["load"], part["load"]) == (5, 10)
    assert part["statuses"].keys() == {"OK"}
    assert 1 <= part["offered"] < 40
    assert 0 < part["measured_s"] < 4
    assert "Interrupted" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "latency.png").stat().st_size > 10_000


def test_a_server_that_dies_ends_the_sweep_and_keeps_what_was_measured(
    farrank: Farrank, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--callers", "1,2", "--repeats", "1", "--warm-up-s", "0", "--duration-s", "4", "--out", out]
    with spawned_server([f"--ranker=maxp={tiny_rankers['maxp']}", "--threads=1", "--log-level=error"]) as own:

        def kill() -> None:
            wait_for_answers(own, 3)
            own.process.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        outcome = farrank("loadtest", "latency", "--target", own.address, *TINY, *options)
        killing.join()
    assert outcome.exit_code == 3
    assert "the server no longer answers: " in outcome.err
    assert f"{out} keeps the measurements" in outcome.err
    (step,) = results_of(out)["steps"]
    assert step["statuses"]["OK"] > 0
    assert step["statuses"]["UNAVAILABLE"] > 0
    assert "The sweep ended early: the server no longer answers" in (out / "report.html").read_text()


def loadtest(*arguments: object, rates: str = "5") -> list[object]:
    return ["loadtest", "latency", "--rates", rates, "--repeats", "1", "--duration-s", "1", *arguments]


def test_unreachable_targets_are_reported_before_any_load(
    farrank: Farrank, server: SpawnedServer, tmp_path: Path
) -> None:
    unknown = farrank(*loadtest("--target", server.address, "--ranker", "zz", "--out", tmp_path, *TINY))
    assert unknown.exit_code == 1
    assert re.fullmatch(r"farrank: \S+: .*zz.*maxp.*\[NOT_FOUND\]\n", unknown.err)
    for target in ("127.0.0.1:1", "tei:http://127.0.0.1:1"):
        absent = farrank(*loadtest("--target", target, "--out", tmp_path, *TINY))
        assert absent.exit_code == 3
        assert re.fullmatch(rf"farrank: {target}: .*(refused|onnect).*\[\w+\]\n", absent.err)
    remote = farrank(*loadtest("--target", "192.0.2.1:50051", "--out", tmp_path, *TINY))
    assert remote.exit_code == 2
    assert "--allow-remote" in remote.err
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rates", "9999"], "rate 9999/s: must be above 0 and at most 2500/s (--max-rate)"),
        (["--rates", "2,20", "--max-rate", "10"], "rate 20/s: must be above 0 and at most 10/s"),
        (["--callers", "1000"], "at most 256 (--max-callers)"),
        (["--rates", "2000", "--duration-s", "1000"], "calls exceed the cap of 1,000,000 (--max-calls)"),
        (["--rates", "1", "--max-load-s", "10"], "75 s of load exceed the cap of 10 s (--max-load-s)"),
        (["--climb", "1"], "--climb: needs an --objective"),
        (["--climb", "1", "--objective", "p99=1s", "--factor", "1"], "--factor 1: must be at least 1.01"),
        (["--climb", "0", "--objective", "p99=1s"], "argument --climb: 0 is not above 0"),
        (["--climb", "20", "--max-rate", "10", "--objective", "p99=1s"], "rate 20/s: must be above 0 and at"),
        (["--rates", "1", "--documents", "0"], "argument --documents: 0 is not between 1 and 2147483647"),
        (["--rates", "1", "--objective", "fast"], "objective 'fast': must be"),
        (["--rates", "1", "--objective", "p99=20s"], "calls time out after 10 s"),
        (["--rates", "0"], "argument --rates: 0 is not above 0"),
        (["--rates", "1,x"], "argument --rates: 'x' is not a number"),
        (["--rates", "inf"], "argument --rates: inf is not finite"),
        (["--callers", "1.5"], "argument --callers: '1.5' is not a whole number"),
        ([], "one of the arguments --rates --climb --callers is required"),
        (["--rates", "1", "--synthetic", "normal:3"], "lengths 'normal:3': must be constant"),
        (["--rates", "1", "--target", "nowhere"], "target 'nowhere': must be HOST:PORT"),
    ],
)
def test_wrong_flags_end_with_a_line(
    farrank: Farrank, tmp_path: Path, arguments: list[str], said: str
) -> None:
    outcome = farrank("loadtest", "latency", "--out", tmp_path, *TINY, *arguments)
    assert outcome.exit_code == 2
    assert said in outcome.err
    assert not (tmp_path / "results.json").exists()


def test_wrong_files_end_with_a_line(farrank: Farrank, tmp_path: Path) -> None:
    workload = tmp_path / "calls.jsonl"
    workload.write_text('{"query": "q", "documents": ["d"]}\nnonsense\n')
    outcome = farrank(*loadtest("--out", tmp_path / "out", "--workload", workload))
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"farrank: {workload}:2: not JSON")

    no_queries = farrank(*loadtest("--out", tmp_path / "out", "--run", workload))
    assert (no_queries.exit_code, no_queries.err) == (2, "farrank: --run: needs --queries and --collection\n")

    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert farrank(*loadtest("--out", in_the_way, *TINY)).exit_code == 2
    (tmp_path / "results.json").touch()
    taken = farrank(*loadtest("--out", tmp_path, *TINY))
    assert taken.exit_code == 2
    assert "already holds results.json" in taken.err
