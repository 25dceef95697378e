"""`python -m farrank_bench` reports sections that failed or were interrupted, and never as a figure."""

import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farrank_bench import __main__ as command
from farrank_bench import own_server, served
from farrank_bench.__main__ import SECTIONS, Parts
from farrank_bench.corpus_calls import call_of
from farrank_bench.own_server import OwnServer
from farrank_bench.report import PartlyFailed, Row
from farrank_bench.rounds import ContenderFailed, PassResult
from farrank_bench.served import offer
from farrank_loadtest.targets import Answer

CALLS = [call_of("q", ["one", "two"])]


def stands(measured: str) -> Callable[[object], Parts]:
    def section(bench: object) -> Parts:
        yield measured, lambda: [Row("a", measured)]

    return section


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["farrank_bench", "--sections", *arguments])
    return command.main()


def test_a_set_up_that_fails_leaves_the_other_sections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(bench: object) -> Parts:
        raise RuntimeError("no room for the server")
        yield

    monkeypatch.setitem(SECTIONS, "server", fails)
    monkeypatch.setitem(SECTIONS, "engine", stands("Admission"))
    assert run(monkeypatch, "server", "engine") == 1
    out, err = capsys.readouterr()
    page = out[out.index("# The server\n") :]
    told = "## The set-up of server\n\n| what | measured | aim | reached |\n| --- | --- | --- | --- |\n"
    assert f"{told}| all or some | not measured: RuntimeError: no room for the server |" in page
    assert "| a | Admission |" in page
    assert err.endswith("farrank_bench: The set-up of server failed\n")


def test_without_an_export_no_start_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "export_fast", lambda *_, **__: ([], [Row("export in fp32", "refused: no disk")])
    )
    assert run(monkeypatch, "exports") == 1
    out = capsys.readouterr().out
    assert "| all or some | not measured: PartlyFailed: no precision could be exported |" in out
    assert "| export in fp32 | refused: no disk |" in out
    assert "\nStart\n" not in out
    assert "Exports against peers" not in out


def test_ctrl_c_keeps_the_sections_that_were_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(bench: object) -> Parts:
        def measure() -> list[Row]:
            raise KeyboardInterrupt

        yield "The event loop", measure

    monkeypatch.setitem(SECTIONS, "server", stands("Throughput"))
    monkeypatch.setitem(SECTIONS, "engine", interrupted)
    out = tmp_path / "report.md"
    assert run(monkeypatch, "server", "engine", "exports", "--out", str(out)) == 130
    page = out.read_text(encoding="utf-8")
    assert "; INTERRUPTED: sections are missing\n" in page
    assert page.endswith("| a | Throughput |  |  |\n")
    assert "The event loop" not in page
    assert capsys.readouterr().err == "farrank_bench: interrupted\n"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["server", "idle"], "idle is a part of server: choose one of them"),
        (["engine", "engine"], "names a section twice"),
    ],
)
def test_sections_of_one_title_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: Sequence[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, *names)
    assert f"argument --sections: {says}" in capsys.readouterr().err


def test_a_load_that_was_cut_short_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContenderFailed, match="the server no longer answers: "):
        offer("127.0.0.1:1", CALLS, [50.0], 0.2)

    # A second signal would end the process that runs the tests, if it came after the load.
    signals = iter([signal.SIGINT])

    class Interrupting:
        async def rerank(self, *_: object, **__: object) -> Answer:
            for each in signals:
                signal.raise_signal(each)
            return Answer((2.0, 1.0))

        async def close(self) -> None:
            pass

    monkeypatch.setattr(served, "open_target", lambda address: Interrupting())
    with pytest.raises(KeyboardInterrupt):
        offer("127.0.0.1:1", CALLS, [50.0], 0.2)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ContenderFailed("UNAVAILABLE: it left"), "UNAVAILABLE: it left"),
        (PassResult(1.0, 1), "the server ran 1 pairs of 2"),
    ],
)
def test_why_a_server_has_no_throughput_stands_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: PassResult | ContenderFailed,
    says: str,
) -> None:
    class RuntimeAlone:
        def __init__(self, *_: object) -> None:
            self.score = partial(PassResult, 1.0, 2)

    def score_served(*_: object) -> PassResult:
        if isinstance(answer, ContenderFailed):
            raise answer
        return answer

    class Reranker:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

        def rank_all(self, _: object) -> list[Any]:
            return [SimpleNamespace(usage=SimpleNamespace(chunks=2))]

    monkeypatch.setattr(own_server, "RuntimeAlone", RuntimeAlone)
    monkeypatch.setattr(own_server, "Reranker", Reranker)
    monkeypatch.setattr(own_server, "encoder_inputs", lambda *_: ["pair", "pair"])
    monkeypatch.setattr(own_server, "longest_first", list)
    monkeypatch.setattr(own_server, "Request", lambda *_: None)
    monkeypatch.setattr(own_server, "score", lambda *_: [])
    monkeypatch.setattr(served, "score_served", score_served)
    monkeypatch.setattr(served, "read_metrics", lambda *_: [0.0, 0.0])
    nothing: Any = type("Nothing", (), {"address": "", "metrics_url": ""})
    own = OwnServer(nothing, nothing, nothing, nothing, CALLS, 1, 1)
    with pytest.raises(PartlyFailed, match="failed: server") as raised:
        own.throughput()
    alone, through, ratio, *_ = raised.value.rows
    assert alone.measured == "2.0 (2.0 to 2.0)"
    assert through.measured == ratio.measured == f"not measured: {says}"
    assert ratio.reached is False
    assert own.capacity_per_s is None
    assert f"  server failed: {says}\n" in capsys.readouterr().out
