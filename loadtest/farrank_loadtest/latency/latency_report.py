"""What a sweep leaves in its folder: JSON, CSV, charts, and one HTML page with all of it."""

import base64
import csv
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.kept_files import writing_to
from farrank_loadtest.latency.latency_charts import latency_chart, percentiles_chart, stages_chart
from farrank_loadtest.latency.recorder import Histogram, Recorder
from farrank_loadtest.latency.sweep import StepResult, Sweep
from farrank_loadtest.machine import describe_machine
from farrank_loadtest.workloads import Workload

PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# Fewer answers beyond a percentile than this, and it is an accident of the run.
ENOUGH_BEYOND = 10
# From this share of cached chunks on, a reader is warned.
CACHED_SHARE = 0.01
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
        "messages": recorder.messages,
        "good": recorder.good,
        "goodput_per_s": recorder.goodput_per_s,
        "latency_s": _summary(recorder.latency),
        "stages_s": {stage: _summary(histogram) for stage, histogram in recorder.stages.items()},
        "counts": dict(recorder.counts),
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
            rows.append(
                {
                    "load": step.amount,
                    "unit": unit(sweep),
                    "repeat": repeat,
                    "held": step.held,
                    "generator_bound": step.generator_bound,
                    "measured_s": round(recorder.measured_s, 3),
                    "offered": recorder.offered,
                    "failed": recorder.failed,
                    "statuses": " ".join(f"{name}:{n}" for name, n in recorder.statuses.most_common()),
                    "cached_share": round(recorder.cached_share, 4),
                    "good": recorder.good,
                    "goodput_per_s": round(recorder.goodput_per_s, 3),
                    **_columns_ms("", recorder.latency),
                    **{
                        name: value
                        for stage, histogram in recorder.stages.items()
                        for name, value in _columns_ms(f"server_{stage}_", histogram).items()
                    },
                    "generator_lag_p99_ms": round(recorder.lag.percentile_s(99) * 1e3, 3),
                    "generator_busy": round(recorder.busy, 3),
                }
            )
    return rows


def _columns_ms(prefix: str, histogram: Histogram) -> dict[str, float]:
    return {
        f"{prefix}{name}_ms": round(s * 1e3, 3) for name, s in _summary(histogram).items() if name != "count"
    }


def unit(sweep: Sweep) -> str:
    """Name what a load counts."""
    return "calls/s" if sweep.plan.loop == "open" else "callers"


def render_page(sweep: Sweep, setting: Setting, charts: Mapping[str, Figure]) -> str:
    """Fill the page; `charts` by their titles."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ms"] = _in_ms
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(
        sweep=sweep,
        plan=sweep.plan,
        setting=setting,
        unit=unit(sweep),
        percents=PERCENTS,
        charts={title: _data_uri(figure) for title, figure in charts.items()},
        verdict=verdict(sweep),
        is_thin=_is_thin,
        stages=list(dict.fromkeys(stage for step in sweep.by_load for stage in step.whole.stages)),
    )


def verdict(sweep: Sweep) -> str:
    """Say in a sentence or two what was found."""
    objective = sweep.plan.objective
    said = []
    decided = any(step.held is not None for step in sweep.steps)
    if objective is not None:
        highest = sweep.highest
        if highest is not None:
            load = sweep.plan.describe_load(highest.amount)
            said.append(f"{load} is the highest load tried that holds {objective}.")
        elif decided:
            said.append(f"No load tried holds {objective}.")
        if sweep.limited_by == "generator":
            said.append("What broke it first was the load generator, not the server.")
        elif sweep.limited_by is None and decided:
            said.append("No load tried breaks it.")
    said += _warnings(sweep)
    if sweep.note is not None:
        said.append(f"The sweep ended early: {sweep.note}.")
    if sweep.interrupted:
        said.append("Interrupted: the last load was measured in part, and higher ones not at all.")
    if objective is None:
        said.insert(0, "No objective was given: see the table.")
    return " ".join(said)


def _warnings(sweep: Sweep) -> list[str]:
    """Say what a reader of the percentiles must know: calls that failed, and work that a cache saved."""
    said = []
    failing = max(sweep.steps, key=lambda step: step.whole.failed / step.whole.offered, default=None)
    if failing is not None and failing.whole.failed:
        load = sweep.plan.describe_load(failing.amount)
        said.append(f"At {load}, {failing.whole.failures}.")
    cached = max((step.whole.cached_share for step in sweep.steps), default=0.0)
    if cached >= CACHED_SHARE:
        said.append(
            f"Up to {cached:.0%} of the chunks came from the server's document cache, as the same calls are "
            "sent again and again: texts that it has not seen take longer (send more calls, or serve with "
            "cache_bytes=0)."
        )
    return said


def _is_thin(histogram: Histogram, percent: float) -> bool:
    return histogram.count * (1 - percent / 100) < ENOUGH_BEYOND


def _in_ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _data_uri(figure: Figure) -> str:
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")


RESULTS = "results.json"
PAGE = "report.html"


def prepare_folder(folder: Path) -> None:
    """Make the folder, before any load: a sweep must not end with nowhere to go.

    Raises: LoadtestError if it holds results already, or cannot be made or written to.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RESULTS).exists():
            raise LoadtestError(f"{folder}: holds {RESULTS} already; name another folder")
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink()


def write_folder(folder: Path, sweep: Sweep, setting: Setting) -> None:
    """Write `results.json`, `results.csv`, the charts as PNG, and `report.html`.

    Charts that nothing was measured for are left out.
    Raises: LoadtestError if a file cannot be written.
    """
    with writing_to(folder):
        # The figures first: a chart that fails must not cost what was measured.
        found = json.dumps(as_json(sweep, setting), indent=2, ensure_ascii=False)
        (folder / RESULTS).write_text(found + "\n", encoding="utf-8")
        rows = as_csv(sweep)
        columns = list(dict.fromkeys(column for row in rows for column in row))
        with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        charts = {}
        if any(step.whole.latency.count for step in sweep.steps):
            drawn = {
                ("latency.png", "Latency and goodput against load"): latency_chart(sweep),
                ("stages.png", "Latency and the server's own stages"): stages_chart(sweep),
                ("percentiles.png", "Percentiles"): percentiles_chart(sweep),
            }
            for (name, title), figure in drawn.items():
                if figure is not None:
                    figure.savefig(folder / name)
                    charts[title] = figure
        (folder / PAGE).write_text(render_page(sweep, setting, charts), encoding="utf-8")
