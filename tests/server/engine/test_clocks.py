"""A stepped clock moves no deadline: all waits use the monotonic clock."""

import ast
import time
from pathlib import Path

import pytest

from support.engine_bench import OpenBench, scores

ROOT = Path(__file__).parents[3]
ROOMS = ("server", "first_stage", "indexes", "lucene", "calls", "settings", "runtimes", "rankers")
WALL = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
}
# These modules may use the wall clock: log lines, traces, answers with a creation time, and expiry dates.
MAY_ASK = {
    "telemetry/tracing.py",
    "farrank_first_stage/search_child.py",
    "dialects/score.py",
    "dialects/shapes.py",
    "access/keys.py",
}


def test_the_walls_clock_is_asked_for_dates_alone() -> None:
    asked = set()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_of_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_of_name and (node.value.id, node.attr) in WALL:  # type: ignore[attr-defined]
                asked.add("/".join(path.parts[-2:]))
    assert asked <= MAY_ASK
    assert "access/keys.py" in asked


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
async def test_calls_in_flight_outlive_a_step_of_a_day(
    open_bench: OpenBench, wanted: list[float], monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    real = time.time

    def before(inputs: object) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + step_s)

    async with open_bench(before) as bench:
        assert scores(await bench.rerank(timeout_s=20)) == pytest.approx(wanted, abs=1e-5)
        assert scores(await bench.rerank(timeout_s=20)) == pytest.approx(wanted, abs=1e-5)
        assert bench.count("farrank_worker_restarts_total") == 0
