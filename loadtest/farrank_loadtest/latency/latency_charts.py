"""The charts of a sweep: latency against load, the server's stages, and all percentiles."""

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
# From this ratio of the highest to the lowest load on, a linear scale would crowd the low loads.
_WIDE = 12.0
_FEW = 10
# Ticks N -> label, where one in N answers is slower: 100 is the 99th percentile. On this scale each further
# nine takes the same space.
_PERCENTILES = {1.0: "0%", 2.0: "50%", 4.0: "75%", 10.0: "90%", 100.0: "99%", 1e3: "99.9%", 1e4: "99.99%"}
_PERCENTILES |= {1e5: "99.999%", 1e6: "99.9999%"}


def _milliseconds_axis(axes: Axes, label: str) -> None:
    """Show times on a log scale, in plain numbers."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 4:
        # A flat curve still needs several ticks.
        low, high = low / 2, high * 2
    axes.set(ylim=(low, high), ylabel=label)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low <= 1000 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_PLAIN)


def _load_axis(axes: Axes, amounts: Sequence[float], sweep: Sweep) -> None:
    """Show the load: as offered calls a second, or as callers."""
    if amounts and max(amounts) / min(amounts) > _WIDE:
        axes.set_xscale("log")
        few_callers = sweep.plan.loop == "closed" and len(amounts) <= _FEW
        axes.xaxis.set_major_locator(FixedLocator(amounts) if few_callers else LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(_PLAIN)
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("offered load (calls/s)" if sweep.plan.loop == "open" else "callers, each waiting")


def _dress(axes: Axes, title: str = "", *, legend: bool = True) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _footnote(figure: Figure, *notes: str) -> None:
    figure.supxlabel(" ".join(notes), x=0.01, ha="left", fontsize=8, color="0.35")


# The slowest first, in the order of the curves from top to bottom.
_SHOWN = (99.9, 99.0, 90.0, 50.0)


def latency_chart(sweep: Sweep) -> Figure:
    """Draw percentiles of the latency (top) and goodput (bottom) against the load."""
    figure = new_figure(8.5, 7.5)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps, objective = sweep.by_load, sweep.plan.objective
    answered = _answered(sweep)
    for colour, percent in zip(COLOURS, _SHOWN, strict=False):
        # A percentile with no answer beyond it would only repeat the slowest answer.
        known = [step for step in answered if step.whole.latency.count * (100 - percent) >= 100]
        if known:
            _line(top, known, f"p{percent:g}", colour, _milliseconds(percent), band=True)
    if objective is not None:
        top.axhline(objective.bound_s * 1e3, color="black", linestyle="--", linewidth=1, label=f"{objective}")
    _milliseconds_axis(top, "latency of answers (ms)")

    in_time = "answered" if objective is None else f"answered within {objective.bound_s * 1e3:g} ms"
    _line(bottom, answered, in_time, COLOURS[4], lambda recorder: recorder.goodput_per_s, band=True)
    amounts = [step.amount for step in steps]
    if sweep.plan.loop == "open":
        # Many points: with a log scale of the load the line is curved.
        offered = np.linspace(min(amounts), max(amounts), 300)
        bottom.plot(offered, offered, color="0.6", linestyle=":", linewidth=1, label="as offered")
    bottom.set_ylabel("goodput (calls/s)")
    bottom.set_ylim(bottom=0)
    _load_axis(bottom, amounts, sweep)
    if sweep.highest is not None:
        held = sweep.plan.describe_load(sweep.highest.amount)
        for axes, label in ((top, None), (bottom, f"highest that holds: {held}")):
            axes.axvline(sweep.highest.amount, color="0.35", linewidth=1, linestyle="-.", label=label)
    _dress(top, "Latency against load")
    _dress(bottom)
    notes = {
        "Bands: from the lowest repeat to the highest.": any(len(step.repeats) > 1 for step in steps),
        "Hollow: the load generator, not the server, was the limit.": _generator_bound(sweep),
    }
    _footnote(figure, *(note for note, applies in notes.items() if applies))
    return figure


def stages_chart(sweep: Sweep) -> Figure | None:
    """Draw the server's stages and the latency, median and 99th percentile; None if it reports no stages."""
    steps = _answered(sweep)
    names = list(dict.fromkeys(stage for step in steps for stage in step.whole.stages))
    if not names:
        return None
    figure = new_figure(9.5, 5)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, percent, title in ((left, 50.0, "Median"), (right, 99.0, "99th percentile")):
        for colour, name in zip(COLOURS, names, strict=False):
            _line(axes, steps, f"server: {name}", colour, _milliseconds(percent, name))
        # On top and dashed, because the server's total mostly lies just below.
        _line(axes, steps, "latency", "black", _milliseconds(percent), style="--")
        _load_axis(axes, [step.amount for step in steps], sweep)
        _dress(axes, title, legend=axes is right)
    _milliseconds_axis(left, "time (ms)")
    _milliseconds_axis(right, "")
    _footnote(figure, "Stages of one call overlap: they do not add up to its total.")
    return figure


def percentiles_chart(sweep: Sweep) -> Figure:
    """Draw every load's latency over its percentiles, up to the last that its answers support."""
    figure = new_figure(8.5, 5)
    axes = figure.subplots()
    steps, objective = _answered(sweep), sweep.plan.objective
    furthest = 10.0
    for colour, step in zip(colormaps["viridis"](np.linspace(0.0, 0.9, len(steps))), steps, strict=True):
        count = step.whole.latency.count
        furthest = max(furthest, count)
        # One in `ones` answers is slower: 2 is the median, 100 the 99th percentile.
        ones = np.geomspace(1.0, max(2.0, count), 200)
        shares = list(100.0 * (1.0 - 1.0 / ones))
        values_ms = [1e3 * each for each in step.whole.latency.percentiles_s(shares)]
        style = "--" if step.generator_bound else "-"
        label = sweep.plan.describe_load(step.amount)
        axes.plot(ones, values_ms, style, color=colour, linewidth=LINE, label=label)
    if objective is not None and objective.percent < 100:
        at = 1.0 / (1.0 - objective.percent / 100.0)
        axes.plot(at, objective.bound_s * 1e3, "kX", markersize=9, label=f"{objective}")
        furthest = max(furthest, at)
    shown = {at: name for at, name in _PERCENTILES.items() if at <= furthest * 1.05}
    axes.set(xscale="log", xlim=(1.0, furthest * 1.1), xlabel="percentile of answers")
    axes.set_xticks(list(shown), list(shown.values()))
    axes.set_xticks([], minor=True)
    _milliseconds_axis(axes, "latency of answers (ms)")
    _dress(axes, "Percentiles of the latency")
    if _generator_bound(sweep):
        _footnote(figure, "Dashed: the load generator, not the server, was the limit.")
    return figure


def _answered(sweep: Sweep) -> list[StepResult]:
    return [step for step in sweep.by_load if step.whole.latency.count]


def _generator_bound(sweep: Sweep) -> bool:
    return any(step.generator_bound for step in sweep.steps)


def _milliseconds(percent: float, stage: str | None = None) -> Callable[[Recorder], float]:
    def value(recorder: Recorder) -> float:
        histogram = recorder.latency if stage is None else recorder.stages[stage]
        return histogram.percentile_s(percent) * 1e3

    return value


def _line(
    axes: Axes,
    steps: Sequence[StepResult],
    label: str,
    colour: str,
    value: Callable[[Recorder], float],
    *,
    style: str = "-",
    band: bool = False,
) -> None:
    """Draw a value against the load; hollow if the generator was the limit; a band over the repeats."""
    amounts, values = [step.amount for step in steps], [value(step.whole) for step in steps]
    axes.plot(amounts, values, style, color=colour, linewidth=LINE, label=label)
    for step, at in zip(steps, values, strict=True):
        face = "white" if step.generator_bound else colour
        axes.plot(step.amount, at, "o", markersize=5, markerfacecolor=face, markeredgecolor=colour)
    if band:
        spans = [[value(repeat) for repeat in step.repeats if repeat.latency.count] for step in steps]
        axes.fill_between(
            amounts, [*map(min, spans)], [*map(max, spans)], color=colour, alpha=0.12, linewidth=0
        )
