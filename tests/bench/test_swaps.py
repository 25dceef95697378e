"""The swaps benchmark swaps on a real server, prints each period, and tells refused calls from lost ones."""

import pytest

from farrank_bench import swaps


def measured(server_flags: tuple[str, ...], rate_per_s: float) -> dict[str, str]:
    return {row.what: row.measured for row in swaps.measure(1, 2, 2.0, rate_per_s, server_flags)}


def test_each_period_is_printed_and_no_call_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured((), 3.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["  period 1 of 2", "  period 2 of 2"]
    assert ": 0 swaps; calls answered " in lines[0]
    assert ": 2 swaps; calls answered " in lines[1]
    assert found["swaps"] == "2"
    assert int(found["answered calls"]) > 0
    assert found["calls lost, by status"] == "0"
    assert found["answers that match no single version"] == "0"


def test_refused_calls_are_counted_apart_by_their_reason() -> None:
    found = measured(("--set=limits.max_concurrent_calls=1",), 30.0)
    assert "N calls are in flight, all that max_concurrent_calls allows" in found["calls refused, by reason"]
    assert found["calls lost, by status"] == "0"
