"""Axes that all charts of a sweep share."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from farrank_loadtest.latency.result import Sweep

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
