"""The charts of a sweep: latency against load, the server's stages beside it, and all percentiles."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from farrank_loadtest.figures import COLOURS, new_figure
from farrank_loadtest.latency.recorder import Recorder
from farrank_loadtest.latency.sweep import StepResult, Sweep

LINE = 1.8
_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
# From this ratio of the highest load to the lowest on, even steps would crowd the low ones.
_WIDE = 12.0
_FEW = 10


def milliseconds_axis(axes: Axes, label: str) -> None:
    """Show times on a log scale, in plain numbers."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 4:
        # A flat curve still needs several numbers beside it.
        axes.set_ylim(low / 2, high * 2)
    decades = math.log10(axes.get_ylim()[1] / axes.get_ylim()[0])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades <= 3 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_PLAIN)
    axes.set_ylabel(label)
    axes.grid(visible=True, which="major", color="0.9")
    axes.set_axisbelow(True)


def load_axis(axes: Axes, amounts: Sequence[float], sweep: Sweep) -> None:
    """Show the load: as offered, or as callers."""
    if amounts and max(amounts) / min(amounts) > _WIDE:
        axes.set_xscale("log")
        few_callers = sweep.plan.loop == "closed" and len(amounts) <= _FEW
        axes.xaxis.set_major_locator(FixedLocator(amounts) if few_callers else LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(_PLAIN)
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("offered load (calls/s)" if sweep.plan.loop == "open" else "callers, each waiting")
    axes.grid(visible=True, which="major", color="0.9")
    axes.set_axisbelow(True)


def percentile_axis(axes: Axes, furthest: float) -> None:
    """Show percentiles so that each nine more takes the same room; `furthest`: one in so many."""
    ticks = {1.0: "0%", 2.0: "50%", 4.0: "75%", 10.0: "90%", 100.0: "99%", 1e3: "99.9%", 1e4: "99.99%"}
    ticks |= {1e5: "99.999%", 1e6: "99.9999%"}
    shown = {at: name for at, name in ticks.items() if at <= furthest * 1.05}
    axes.set_xscale("log")
    axes.set_xlim(1.0, furthest * 1.1)
    axes.xaxis.set_major_locator(FixedLocator(list(shown)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: shown.get(value, "")))
    axes.set_xlabel("percentile of answers")
    axes.grid(visible=True, which="major", color="0.9")


# The slowest first, as they stand above each other.
_SHOWN = {"p99.9": 99.9, "p99": 99.0, "p90": 90.0, "p50": 50.0}


def latency_chart(sweep: Sweep) -> Figure:
    """Draw percentiles of the latency above, and answers in time below, against the load."""
    figure = new_figure(8.5, 7.5)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = sweep.by_load
    for colour, (name, percent) in zip(COLOURS, _SHOWN.items(), strict=False):
        # A percentile that no answer lies beyond is but the slowest answer.
        known = [step for step in steps if step.whole.latency.count * (100 - percent) >= 100]
        if known:
            _line(top, known, name, colour, _latency_ms(percent))
            _band(top, known, colour, _latency_ms(percent))
    objective = sweep.plan.objective
    if objective is not None:
        top.axhline(objective.bound_s * 1e3, color="black", linestyle="--", linewidth=1, label=f"{objective}")
    milliseconds_axis(top, "latency of answers (ms)")
    top.set_title("Latency against load", loc="left", fontweight="bold")

    in_time = "answered" if objective is None else f"answered within {objective.bound_s * 1e3:g} ms"
    _line(bottom, steps, in_time, COLOURS[4], lambda recorder: recorder.goodput_per_s)
    _band(bottom, steps, COLOURS[4], lambda recorder: recorder.goodput_per_s)
    amounts = [step.amount for step in steps]
    if sweep.plan.loop == "open":
        # Many points: on a log scale of the load it is no straight line.
        offered = np.linspace(min(amounts), max(amounts), 300)
        bottom.plot(offered, offered, color="0.6", linestyle=":", linewidth=1, label="as offered")
    bottom.set_ylabel("goodput (calls/s)")
    bottom.set_ylim(bottom=0)
    load_axis(bottom, amounts, sweep)
    if sweep.highest is not None:
        held = sweep.plan.describe_load(sweep.highest.amount)
        for axes, label in ((top, None), (bottom, f"highest that holds: {held}")):
            axes.axvline(sweep.highest.amount, color="0.35", linewidth=1, linestyle="-.", label=label)
    for axes in (top, bottom):
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    notes = []
    if any(len(step.repeats) > 1 for step in steps):
        notes.append("Bands: from the lowest repeat to the highest.")
    if any(step.generator_bound for step in steps):
        notes.append("Hollow: the load generator, not the server, was the limit.")
    _footnote(figure, " ".join(notes))
    return figure


def stages_chart(sweep: Sweep) -> Figure | None:
    """Draw the server's stages beside the latency, median and 99th percentile; None if none were told."""
    steps = [step for step in sweep.by_load if step.whole.latency.count]
    names = list(dict.fromkeys(stage for step in steps for stage in step.whole.stages))
    if not names:
        return None
    figure = new_figure(9.5, 5)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, percent, title in ((left, 50.0, "Median"), (right, 99.0, "99th percentile")):
        for colour, name in zip(COLOURS, names, strict=False):
            _line(axes, steps, f"server: {name}", colour, _stage_ms(name, percent))
        # On top and broken, as the server's total mostly lies right below.
        _line(axes, steps, "latency", "black", _latency_ms(percent), style="--")
        axes.set_title(title, loc="left", fontweight="bold")
        load_axis(axes, [step.amount for step in steps], sweep)
    milliseconds_axis(left, "time (ms)")
    milliseconds_axis(right, "")
    right.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    _footnote(figure, "Stages of one call overlap: they do not add up to its total.")
    return figure


def percentiles_chart(sweep: Sweep) -> Figure:
    """Draw every load's latency over its percentiles, as far out as it has answers for."""
    figure = new_figure(8.5, 5)
    axes = figure.subplots()
    steps = [step for step in sweep.by_load if step.whole.latency.count]
    colours = colormaps["viridis"](np.linspace(0.0, 0.9, max(1, len(steps))))
    furthest = 10.0
    for colour, step in zip(colours, steps, strict=True):
        count = step.whole.latency.count
        furthest = max(furthest, count)
        # One in `ones` answers is slower: 2 is the median, 100 the 99th percentile.
        ones = np.geomspace(1.0, max(2.0, count), 200)
        values_s = step.whole.latency.percentiles_s(list(100.0 * (1.0 - 1.0 / ones)))
        style = "--" if step.generator_bound else "-"
        label = sweep.plan.describe_load(step.amount)
        axes.plot(ones, np.array(values_s) * 1e3, style, color=colour, linewidth=LINE, label=label)
    objective = sweep.plan.objective
    if objective is not None and objective.percent < 100:
        at = 1.0 / (1.0 - objective.percent / 100.0)
        axes.plot(at, objective.bound_s * 1e3, "kX", markersize=9, label=f"{objective}")
        furthest = max(furthest, at)
    percentile_axis(axes, furthest)
    milliseconds_axis(axes, "latency of answers (ms)")
    axes.set_title("Percentiles of the latency", loc="left", fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    if any(step.generator_bound for step in steps):
        _footnote(figure, "Dashed: the load generator, not the server, was the limit.")
    return figure


def _latency_ms(percent: float) -> Callable[[Recorder], float]:
    return lambda recorder: recorder.latency.percentile_s(percent) * 1e3


def _stage_ms(name: str, percent: float) -> Callable[[Recorder], float]:
    return lambda recorder: recorder.stages[name].percentile_s(percent) * 1e3


def _line(
    axes: Axes,
    steps: Sequence[StepResult],
    label: str,
    colour: str,
    value: Callable[[Recorder], float],
    *,
    style: str = "-",
) -> None:
    """One measure against the load; hollow where the generator was the limit."""
    drawn = [step for step in steps if step.whole.latency.count]
    amounts = [step.amount for step in drawn]
    values = [value(step.whole) for step in drawn]
    axes.plot(amounts, values, style, color=colour, linewidth=LINE, label=label)
    for step, at in zip(drawn, values, strict=True):
        face = "white" if step.generator_bound else colour
        axes.plot(step.amount, at, "o", markersize=5, markerfacecolor=face, markeredgecolor=colour)


def _band(axes: Axes, steps: Sequence[StepResult], colour: str, value: Callable[[Recorder], float]) -> None:
    """From the lowest repeat to the highest."""
    spans = {
        step.amount: [value(repeat) for repeat in step.repeats if repeat.latency.count]
        for step in steps
        if step.whole.latency.count
    }
    lowest, highest = [min(each) for each in spans.values()], [max(each) for each in spans.values()]
    axes.fill_between(list(spans), lowest, highest, color=colour, alpha=0.12, linewidth=0)


def _footnote(figure: Figure, text: str) -> None:
    figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color="0.35")
