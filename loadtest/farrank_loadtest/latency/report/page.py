"""One HTML file that holds everything a person wants to see, with nothing to fetch."""

import base64
from collections.abc import Mapping
from importlib.resources import files
from io import BytesIO

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from farrank_loadtest.latency.histogram import Histogram
from farrank_loadtest.latency.report.rows import ENOUGH_BEYOND, PERCENTS, Setting, unit
from farrank_loadtest.latency.result import Sweep


def render_page(sweep: Sweep, setting: Setting, charts: Mapping[str, Figure]) -> str:
    """Fill the page; `charts` by their titles."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ms"] = _milliseconds
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
    if sweep.note is not None:
        said.append(f"The sweep ended early: {sweep.note}.")
    if sweep.interrupted:
        said.append("Interrupted: the last load was measured in part, and higher ones not at all.")
    return " ".join(said) or "No objective was given: see the table."


def _is_thin(histogram: Histogram, percent: float) -> bool:
    return histogram.count * (1 - percent / 100) < ENOUGH_BEYOND


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _data_uri(figure: Figure) -> str:
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")
