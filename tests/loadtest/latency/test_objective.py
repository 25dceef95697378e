"""The text of an objective, and when it holds."""

import pytest

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.latency.plan import Objective, parse_objective


def test_objectives_are_read() -> None:
    assert parse_objective("p99=500ms") == Objective(99.0, 0.5)
    assert parse_objective("p99.9=1.5s") == Objective(99.9, 1.5)
    assert str(parse_objective("p99.9=1.5s")) == "p99.9 within 1500 ms"


@pytest.mark.parametrize(
    "given", ["", "99=500ms", "p99", "p99=500", "p99=-1s", "p0=1s", "p101=1s", "p99=0ms", "p99=1m", "p99=1s "]
)
def test_an_invalid_objective_is_refused_with_the_format(given: str) -> None:
    with pytest.raises(LoadtestError, match=r"must be pPERCENT|above 0"):
        parse_objective(given)


def test_the_share_of_answers_in_time_decides() -> None:
    objective = Objective(99.0, 0.5)
    assert objective.holds(99, 100)
    assert not objective.holds(98, 100)
    assert not objective.holds(0, 0)
    assert Objective(99.9, 0.5).holds(999, 1000)
    assert not Objective(100, 0.5).holds(999, 1000)
