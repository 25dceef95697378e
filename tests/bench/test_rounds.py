from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from farrank_bench.against_peers import ALONE, FARRANK, INFINITY, LOADED, least_tau, speed_rows, tau_row, taus
from farrank_bench.peers import PREDICT
from farrank_bench.rounds import ContenderFailed, PassResult, measure_rounds


@dataclass
class Timed:
    """Takes the given seconds for 12 documents, pass by pass, and fails after the last one."""

    name: str
    seconds: Iterator[float]
    order: list[str] = field(default_factory=list)

    def __call__(self) -> PassResult:
        self.order.append(self.name)
        for took in self.seconds:
            return PassResult(took, 12, ((1.0, 2.0),))
        raise ContenderFailed(f"{self.name} ended")


def timed(order: list[str], **seconds: list[float]) -> dict[str, Timed]:
    return {name: Timed(name, iter(taken), order) for name, taken in seconds.items()}


def test_contenders_take_turns_and_the_first_pass_is_not_measured() -> None:
    order: list[str] = []
    found = measure_rounds(timed(order, a=[100, 1, 2], b=[100, 3, 12]), rounds=2)
    assert order == ["a", "b"] * 3
    assert found.speeds == {"a": [12, 6], "b": [4, 1]}
    assert found.ratios("a", "b") == [3, 6]
    assert found.scores == {"a": ((1.0, 2.0),), "b": ((1.0, 2.0),)}


def test_a_failed_contender_is_left_out_and_the_others_go_on() -> None:
    order: list[str] = []
    found = measure_rounds(timed(order, a=[1, 1, 1, 1], b=[1, 1]), rounds=3)
    assert found.failed == {"b": "b ended"}
    assert set(found.speeds) == {"a"}
    assert len(found.speeds["a"]) == 3
    assert order == ["a", "b", "a", "b", "a", "b", "a"]
    with pytest.raises(KeyError):
        found.ratios("a", "b")


def test_ratios_are_held_to_their_aims() -> None:
    # Farrank's speed is 12, loaded 13.3, its runtime's 13.9, the peers' 4.1 and 2.
    names = {FARRANK: 1.0, LOADED: 0.9, ALONE: 0.864, PREDICT: 12 / 4.1, INFINITY: 6.0}
    found = measure_rounds({name: Timed(name, iter([took] * 3)) for name, took in names.items()}, rounds=2)
    rows = {row.what: row for row in speed_rows(found)}
    reached = {what: row.reached for what, row in rows.items() if row.aim}
    assert reached == {
        f"{FARRANK}, over {PREDICT}": False,
        f"{FARRANK}, over {INFINITY}": True,
        f"{LOADED}, over {ALONE}": True,
    }
    assert rows[f"{FARRANK}, over {PREDICT}"].measured == "2.93 (2.93 to 2.93)"
    assert rows["documents/s through Farrank's server, 4 callers"].measured == "12.0 (12.0 to 12.0)"


def test_a_missing_peer_leaves_the_other_lines() -> None:
    found = measure_rounds(
        {name: Timed(name, iter([1.0, 1.0])) for name in (FARRANK, LOADED, ALONE, PREDICT)}, rounds=1
    )
    found.failed[INFINITY] = "pip failed: no network"
    rows = speed_rows(found)
    missing = [row for row in rows if row.measured == "not measured: pip failed: no network"]
    assert [row.reached for row in missing] == [None, False]
    assert sum(row.reached is True for row in rows) == 1  # its runtime alone, because 1.0 is not 3 times 1.0
    assert len(rows) == 8


def test_rankings_are_compared_call_by_call() -> None:
    expected = ((1.0, 2.0, 3.0), (3.0, 2.0, 1.0))
    sigmoid_like = ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    assert taus(expected, sigmoid_like) == [1, -1]


def test_a_mixed_precision_is_held_to_the_bound_of_its_coarsest() -> None:
    assert [least_tau(name) for name in ("fp32", "bf16", "int8", "int8+bf16")] == [0.99, 0.98, 0.95, 0.95]


@pytest.mark.parametrize(
    ("by_call", "precision", "reached"),
    [
        ([1.0, 0.92], "int8+bf16", True),
        ([1.0, 0.91], "int8+bf16", False),
        ([0.94, 0.95], "int8+bf16", False),
        ([1.0, 0.98], "fp32", False),
    ],
)
def test_the_worst_call_has_a_limit_too(by_call: list[float], precision: str, reached: bool) -> None:
    assert tau_row("Farrank", by_call, precision).reached is reached
