"""A sweep as plain values, for JSON, CSV and the page."""

import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

from farrank_loadtest.latency.histogram import Histogram
from farrank_loadtest.latency.recorder import Recorder
from farrank_loadtest.latency.result import StepResult, Sweep
from farrank_loadtest.machine import describe_machine
from farrank_loadtest.workloads import Workload

PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# Fewer answers beyond a percentile than this, and it is an accident of the run.
ENOUGH_BEYOND = 10
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a sweep was made, for who reads it later."""

    command: str
    started_at: str
    farrank: str
    machine: str
    target: str
    workload: str


def describe_setting(target: str, workload: Workload) -> Setting:
    """Note the command that runs in this process, when and where."""
    return Setting(
        command=shlex.join(["farrank", *sys.argv[1:]]),
        started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        farrank=version("farrank"),
        machine=describe_machine(),
        target=target,
        workload=workload.describe(),
    )


def as_json(sweep: Sweep, setting: Setting) -> dict[str, Any]:
    """Give everything; times are in seconds."""
    plan, highest = sweep.plan, sweep.highest
    return {
        "format": FORMAT,
        **asdict(setting),
        "ranker": plan.ranker,
        "loop": plan.loop,
        "arrivals": plan.arrivals if plan.loop == "open" else None,
        "warm_up_s": plan.warm_up_s,
        "duration_s": plan.duration_s,
        "repeats": plan.repeats,
        "timeout_s": plan.timeout_s,
        "seed": plan.seed,
        "objective": None if plan.objective is None else asdict(plan.objective),
        "interrupted": sweep.interrupted,
        "note": sweep.note,
        "highest_that_holds": None if highest is None else highest.amount,
        "limited_by": sweep.limited_by,
        "steps": [_step(sweep, step) for step in sweep.by_load],
    }


def _step(sweep: Sweep, step: StepResult) -> dict[str, Any]:
    return {
        "load": step.amount,
        "unit": unit(sweep),
        "held": step.held,
        "generator_bound": step.generator_bound,
        **measured(step.whole),
        "repeats": [measured(repeat) for repeat in step.repeats],
    }


def measured(recorder: Recorder) -> dict[str, Any]:
    """Give one recorder's figures."""
    return {
        "measured_s": recorder.measured_s,
        "offered": recorder.offered,
        "statuses": dict(recorder.statuses.most_common()),
        "good": recorder.good,
        "goodput_per_s": recorder.goodput_per_s,
        "latency_s": _summary(recorder.latency),
        "stages_s": {stage: _summary(histogram) for stage, histogram in recorder.stages.items()},
        "generator": {"lag_p99_s": recorder.lag.percentile_s(99), "busy": recorder.busy},
    }


def _summary(histogram: Histogram) -> dict[str, float]:
    return {
        "count": histogram.count,
        "mean": histogram.mean_s,
        **{name: histogram.percentile_s(percent) for name, percent in PERCENTS.items()},
        "max": histogram.max_s,
    }


def as_csv(sweep: Sweep) -> list[dict[str, Any]]:
    """Give a row for each load (`repeat` is "all") and for each of its repeats; times in milliseconds."""
    rows = []
    for step in sweep.by_load:
        for repeat, recorder in (("all", step.whole), *enumerate(step.repeats, start=1)):
            failed = recorder.offered - recorder.latency.count
            rows.append(
                {
                    "load": step.amount,
                    "unit": unit(sweep),
                    "repeat": repeat,
                    "held": step.held,
                    "generator_bound": step.generator_bound,
                    "measured_s": round(recorder.measured_s, 3),
                    "offered": recorder.offered,
                    "failed": failed,
                    "good": recorder.good,
                    "goodput_per_s": round(recorder.goodput_per_s, 3),
                    **_milliseconds("", recorder.latency),
                    **{
                        name: value
                        for stage, histogram in recorder.stages.items()
                        for name, value in _milliseconds(f"server_{stage}_", histogram).items()
                    },
                    "generator_lag_p99_ms": round(recorder.lag.percentile_s(99) * 1e3, 3),
                    "generator_busy": round(recorder.busy, 3),
                }
            )
    return rows


def _milliseconds(prefix: str, histogram: Histogram) -> dict[str, float]:
    return {
        f"{prefix}{name}_ms": round(s * 1e3, 3) for name, s in _summary(histogram).items() if name != "count"
    }


def unit(sweep: Sweep) -> str:
    """Name what a load counts."""
    return "calls/s" if sweep.plan.loop == "open" else "callers"
