"""The files of a sweep: JSON, CSV, charts, and one HTML page with everything."""

import base64
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from farrank_loadtest.depths import Depth, depth_text
from farrank_loadtest.kept_files import write_csv, writing_to
from farrank_loadtest.latency.latency_charts import latency_chart, percentiles_chart, stages_chart
from farrank_loadtest.latency.recorder import Histogram, Recorder
from farrank_loadtest.latency.sweep import Sweep
from farrank_loadtest.machine import describe_machine
from farrank_loadtest.workloads import Workload

PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# A percentile with fewer answers beyond it depends on chance.
ENOUGH_BEYOND = 10
# From this share of cached chunks on, the report warns.
CACHED_SHARE = 0.01
FORMAT = 1


def describe_setting(target: str, depth: Depth | None, workload: Workload) -> dict[str, str]:
    """Give the command of this process, its time and machine, for later readers of the results."""
    return {
        "command": shlex.join(["farrank", *sys.argv[1:]]),
        "started_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "farrank": version("farrank"),
        "machine": describe_machine(),
        "target": target,
        "depth": "" if depth is None else depth_text(depth),
        "workload": workload.describe(),
    }


def as_json(sweep: Sweep, setting: Mapping[str, str]) -> dict[str, Any]:
    """Give the whole report; times are in seconds."""
    plan, highest = sweep.plan, sweep.highest
    # `Plan`'s fields are part of FORMAT.
    planned = asdict(plan)
    del planned["caps"]
    return {
        "format": FORMAT,
        **setting,
        **planned,
        "arrivals": plan.arrivals if plan.loop == "open" else None,
        "interrupted": sweep.interrupted,
        "note": sweep.note,
        "highest_that_holds": None if highest is None else highest.amount,
        "limited_by": sweep.limited_by,
        "steps": [
            {
                "load": step.amount,
                "unit": plan.unit,
                "held": step.held,
                "generator_bound": step.generator_bound,
                **_figures(step.whole),
                "repeats": [*map(_figures, step.repeats)],
            }
            for step in sweep.by_load
        ],
    }


def _figures(recorder: Recorder) -> dict[str, Any]:
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
        **dict(zip(PERCENTS, histogram.percentiles_s([*PERCENTS.values()]), strict=True)),
        "max": histogram.max_s,
    }


def as_csv(sweep: Sweep) -> list[dict[str, Any]]:
    """Give a row for each load (`repeat` is "all") and for each of its repeats; times in milliseconds."""
    return [
        {
            "load": step.amount,
            "unit": sweep.plan.unit,
            "repeat": repeat,
            "held": step.held,
            "generator_bound": step.generator_bound,
            **_columns(recorder),
        }
        for step in sweep.by_load
        for repeat, recorder in (("all", step.whole), *enumerate(step.repeats, start=1))
    ]


def _columns(recorder: Recorder) -> dict[str, Any]:
    histograms = {"": recorder.latency} | {f"server_{name}_": each for name, each in recorder.stages.items()}
    times_ms = {
        f"{prefix}{name}_ms": round(seconds * 1e3, 3)
        for prefix, histogram in histograms.items()
        for name, seconds in _summary(histogram).items()
        if name != "count"
    }
    return {
        "measured_s": round(recorder.measured_s, 3),
        "offered": recorder.offered,
        "failed": recorder.failed,
        "statuses": " ".join(f"{name}:{count}" for name, count in recorder.statuses.most_common()),
        "cached_share": round(recorder.cached_share, 4),
        "good": recorder.good,
        "goodput_per_s": round(recorder.goodput_per_s, 3),
        **times_ms,
        "generator_lag_p99_ms": round(recorder.lag.percentile_s(99) * 1e3, 3),
        "generator_busy": round(recorder.busy, 3),
    }


def render_page(sweep: Sweep, setting: Mapping[str, str], charts: Mapping[str, Figure]) -> str:
    """Fill the page; `charts` maps titles to figures."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ms"] = _in_ms
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(
        sweep=sweep,
        plan=sweep.plan,
        setting=setting,
        unit=sweep.plan.unit,
        percents=PERCENTS,
        charts={title: _data_uri(figure) for title, figure in charts.items()},
        verdict=verdict(sweep),
        is_thin=_is_thin,
        stages=list(dict.fromkeys(stage for step in sweep.by_load for stage in step.whole.stages)),
    )


def verdict(sweep: Sweep) -> str:
    """Summarise the result in a few sentences.

    They include caveats of the percentiles: failed calls, and work that a cache saved.
    """
    objective, highest = sweep.plan.objective, sweep.highest
    decided = any(step.held is not None for step in sweep.steps)
    said = ["No objective was given: see the table."] if objective is None else []
    if highest is not None:
        load = sweep.plan.describe_load(highest.amount)
        said.append(f"{load} is the highest load tried that holds {objective}.")
    elif decided:
        said.append(f"No load tried holds {objective}.")
    if sweep.limited_by == "generator":
        said.append("The load generator, not the server, broke it first.")
    elif sweep.limited_by is None and decided:
        said.append("No load tried breaks it.")
    failing = max(sweep.steps, key=lambda step: step.whole.failed / step.whole.offered, default=None)
    if failing is not None and failing.whole.failed:
        load = sweep.plan.describe_load(failing.amount)
        said.append(f"At {load}, {failing.whole.failures}.")
    cached = max((step.whole.cached_share for step in sweep.steps), default=0.0)
    if cached >= CACHED_SHARE:
        said.append(
            f"Up to {cached:.0%} of the chunks came from the server's document cache, because the same calls "
            "are repeated: new texts take longer (send more different calls, or serve with cache_bytes=0)."
        )
    if sweep.note is not None:
        said.append(f"The sweep ended early: {sweep.note}.")
    if sweep.interrupted:
        said.append("Interrupted: the last load was measured only in part, and higher loads not at all.")
    return " ".join(said)


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


def write_folder(folder: Path, sweep: Sweep, setting: Mapping[str, str]) -> None:
    """Write `results.json`, `results.csv`, the charts as PNG, and `report.html`.

    Charts without measurements are left out.
    Raises: LoadtestError if a file cannot be written.
    """
    with writing_to(folder):
        # The figures first: a chart that fails must not lose the measurements.
        found = json.dumps(as_json(sweep, setting), indent=2, ensure_ascii=False)
        (folder / RESULTS).write_text(found + "\n", encoding="utf-8")
        write_csv(folder / "results.csv", as_csv(sweep))
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
