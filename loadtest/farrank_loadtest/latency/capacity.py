"""The number of replicas for a load, computed from the report of a latency test of one replica."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.latency.latency_report import CACHED_SHARE, FORMAT, RESULTS
from farrank_loadtest.latency.plan import Objective

# Used without an objective: at its maximum throughput a replica has no reserve for queueing.
DEFAULT_UTILISATION = 0.7


@dataclass(frozen=True, slots=True)
class Capacity:
    """The calls that one replica answers, per second and in flight, within `objective`; None: at most.

    `notes` are caveats of the report that a planner must know.
    """

    rate_per_s: float
    in_flight: float
    objective: str | None
    notes: tuple[str, ...] = ()

    @property
    def utilisation(self) -> float:
        """The default share of this capacity to plan for."""
        return DEFAULT_UTILISATION if self.objective is None else 1.0

    def replicas(self, load: float, of_one: float, utilisation: float) -> int:
        """Give the number of replicas for a load if one takes `of_one`, at this utilisation; at least 1."""
        # Rounding removes the error of the division: ten times the load of one replica needs ten.
        return max(1, math.ceil(round(load / (of_one * utilisation), 9)))


def read_capacity(report: Path) -> Capacity:
    """Read the capacity of one replica from `results.json` or its folder.

    Raises: LoadtestError if the report cannot be read, is not of a latency test, measured nothing, or if no
    load in it holds its objective.
    """
    path = report / RESULTS if report.is_dir() else report
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadtestError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise LoadtestError(f"{path}: not JSON; name {RESULTS} of `farrank loadtest latency`") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or "highest_that_holds" not in found:
        raise LoadtestError(f"{path}: not written by `farrank loadtest latency` in format {FORMAT}")
    try:
        return _capacity(path, found)
    except (KeyError, TypeError, ValueError) as error:
        raise LoadtestError(f"{path}: incomplete report of `farrank loadtest latency` ({error!r})") from error


def _capacity(path: Path, report: dict[str, Any]) -> Capacity:
    steps = [step for step in report["steps"] if step["good"] > 0]
    if not steps:
        raise LoadtestError(f"{path}: no call was answered")
    objective = None if report["objective"] is None else str(Objective(**report["objective"]))
    highest, notes = report["highest_that_holds"], []
    if objective is None:
        step = max(steps, key=lambda each: each["goodput_per_s"])
        if step is steps[-1]:
            notes.append("the highest load was answered, too: one replica may answer more")
    elif highest is None:
        raise LoadtestError(
            f"{path}: no load holds {objective}; measure lower loads, or give a looser objective"
        )
    else:
        step = next(each for each in steps if each["load"] == highest)
        if report["limited_by"] is None:
            notes.append(f"no load broke {objective}: one replica may answer more")
    if report["limited_by"] == "generator" or step["generator_bound"]:
        notes.append("the load generator was the limit: one replica may answer more")
    if report["interrupted"] or report["note"] is not None:
        notes.append("the test ended early")
    chunks = step["counts"].get("chunks", 0)
    if chunks and (share := step["counts"].get("cached_chunks", 0) / chunks) >= CACHED_SHARE:
        notes.append(f"{share:.0%} of the chunks came from the server's cache: new texts take longer")
    rate_per_s = float(step["goodput_per_s"])
    if step["unit"] == "callers":
        return Capacity(rate_per_s, float(step["load"]), objective, tuple(notes))
    if objective is not None:
        rate_per_s = float(highest)
    # Little's law.
    in_flight = rate_per_s * float(step["latency_s"]["mean"])
    return Capacity(rate_per_s, in_flight, objective, tuple(notes))
