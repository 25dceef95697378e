"""The report of a replay: tables, and a chart of quality against cost for each collection."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from farrank_bench.depth.judging import (
    BM25,
    BOTH,
    BOTH_OWN,
    BUDGET,
    COSINE,
    FIRST,
    MARGIN,
    ORACLE,
    OWN,
    PLAIN,
    PRIOR,
    RANDOM,
    SUM,
    Judgement,
    Outcome,
    Schedule,
    difference,
)
from farrank_loadtest.figures import COLOURS, new_figure
from farrank_loadtest.kept_files import markdown_table

# By ranker.
Judged = Mapping[str, Judgement]


def written(schedule: Schedule) -> str:
    """Write the rounds of a schedule."""
    return ", then ".join(map(str, schedule))


def section(name: str, measure: str, judged: Judged, seed: int) -> str:
    """Write a collection's chart and tables. The chart is in the file `NAME.png`."""
    parts = [f"## {name}\n\n![Quality against cost]({name}.png)"]
    for ranker, found in judged.items():
        parts.append(f"### {name}, `{ranker}`\n\n{_head(found)}")
        parts.append(_fixed(found, seed))
        parts.append(_curves(measure, found))
        parts.append(f"Chosen on the development part: {written(found.chosen)}.\n\n{_tested(found, seed)}")
        parts.append(_schedules(measure, found))
    return "\n\n".join(parts)


def _head(found: Judgement) -> str:
    weights, prior = found.choice.sum, ", ".join(f"{each:+.2f}" for each in found.choice.prior)
    return (
        f"{found.development} questions to choose by, {found.test} to test. {SUM.capitalize()}: "
        f"{weights.cosine:g} of {OWN if weights.own else COSINE}, {1 - weights.cosine:g} of {BM25}; "
        f"{PRIOR}: {found.choice.with_prior.position:g} of the position too. Prior of the chunks 1, 2–3, "
        f"4–7, 8–15 and so on: {prior}. The better of the two on the development part: {found.choice.best}."
    )


def _fixed(found: Judgement, seed: int) -> str:
    full = found.fixed_full
    rows = [_row("full reading", full, "")]
    for (name, schedule), of in found.fixed.items():
        what = f"{written(schedule)}, by {name}" if schedule else f"{name} alone"
        rows.append(_row(what, of, str(difference(of, full, seed))))
    heads = ("all questions, nothing chosen", "quality", "chunks", "cost", "less full reading")
    return markdown_table(heads, rows, aligned=False)


def _curves(measure: str, found: Judgement) -> str:
    heads = [
        f"{measure} by chunks read of a document",
        *(f"{each[0].chunks}" for each in PLAIN),
        "all",
        "alone",
    ]
    rows = []
    for name, outcomes in found.curves.items():
        alone = [f"{found.alone[name].quality.mean():.3f}"] if name in found.alone else [""]
        figures = [f"{each.quality.mean():.3f}" for each in (*outcomes, found.full)]
        rows.append([name, *figures, *alone])
    cost = [f"{each.cost.mean():.2f}" for each in (*found.curves[found.choice.best], found.full)]
    rows.append(["cost, FirstP = 1", *cost, "0"])
    return markdown_table(heads, rows, aligned=False)


def _tested(found: Judgement, seed: int) -> str:
    chosen = found.rivals[found.choice.best]
    best_alone = max(found.alone, key=lambda name: found.alone[name].quality.mean())
    others = {
        "full reading": found.full,
        "FirstP, 512 positions": found.firstp,
        f"the best selector alone ({best_alone})": found.alone[best_alone],
        f"chosen, with {found.share:.1f} of {BOTH} added": found.mixed,
        "full reading, with the same added": found.mixed_full,
        **{
            f"the same schedule by {name}": of
            for name, of in found.rivals.items()
            if name != found.choice.best
        },
    }
    rows = [_row("the chosen selector and schedule", chosen, "")]
    rows += [_row(name, of, str(difference(chosen, of, seed))) for name, of in others.items()]
    table = markdown_table(
        ("test part", "quality", "chunks", "cost", "chosen less this"), rows, aligned=False
    )
    low = difference(chosen, found.full, seed).low
    return f"{table}\n\n{_verdict(chosen, found.full, low)}"


def _row(name: str, of: Outcome, compared: str) -> tuple[str, ...]:
    return name, f"{of.quality.mean():.3f}", f"{of.chunks.mean():.2f}", f"{of.cost.mean():.2f}", compared


def _verdict(chosen: Outcome, full: Outcome, low: float) -> str:
    share, cost = chosen.quality.mean() / full.quality.mean(), chosen.cost.mean()
    said = {True: "yes", False: "no"}
    return (
        f"It keeps {share:.1%} of full reading's quality (aim 97%: {said[bool(share >= 0.97)]}) at "
        f"{cost:.2f} of FirstP's cost (aim {BUDGET:g}: {said[bool(cost <= BUDGET)]}). Not inferior, with a "
        f"bound above {MARGIN:g}: {said[low > MARGIN]}."
    )


def _schedules(measure: str, found: Judgement) -> str:
    rows = [
        (
            written(schedule),
            f"{test.chunks.mean():.2f}",
            f"{test.cost.mean():.2f}",
            f"{development.quality.mean():.3f}",
            f"{test.quality.mean():.3f}",
        )
        for schedule, (development, test) in found.schedules.items()
    ]
    heads = ("schedule, chosen selector", "chunks", "cost", f"{measure}, development", f"{measure}, test")
    return markdown_table(heads, rows, aligned=False)


_STYLES = {
    FIRST: ("0.35", "s-"),
    RANDOM: ("0.7", "x-"),
    BM25: (COLOURS[1], "^-"),
    COSINE: (COLOURS[0], "D-"),
    OWN: (COLOURS[5], "d-"),
    BOTH: (COLOURS[4], "o-"),
    BOTH_OWN: (COLOURS[2], "v-"),
    ORACLE: ("0.7", ":"),
}
_TICKS = (0.1, 0.2, 0.3, 0.6, 1, 2, 3, 5, 10, 20, 50)


def chart(name: str, measure: str, judged: Judged) -> Figure:
    """Draw quality against cost: a panel for each ranker, a line for each selector, a point per schedule."""
    figure = new_figure(6.2 * len(judged), 5.6)
    panels = figure.subplots(1, len(judged), squeeze=False)[0]
    for axes, (ranker, found) in zip(panels, judged.items(), strict=True):
        _draw(axes, found)
        axes.set_title(f"{ranker}, {found.test} questions", loc="left", fontsize=10)
        axes.set_ylabel(measure)
    figure.suptitle(f"{name}: quality by cost of reading", x=0.01, ha="left", fontweight="bold")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=2 * len(judged)
    )
    return figure


def _draw(axes: Axes, found: Judgement) -> None:
    for name, (colour, style) in _STYLES.items():
        outcomes = [*found.curves[name], found.full]
        costs, means = _points(outcomes)
        axes.plot(costs, means, style, color=colour, markersize=4, linewidth=1.2, label=name)
    costs, means = _points([test for schedule, (_, test) in found.schedules.items() if schedule not in PLAIN])
    axes.plot(costs, means, "P", color=COLOURS[3], markersize=7, label="rounds, chosen selector")
    chosen = found.rivals[found.choice.best]
    x, y = chosen.cost.mean(), chosen.quality.mean()
    axes.plot(x, y, "o", markersize=13, mfc="none", mec=COLOURS[3], label="chosen schedule")
    axes.plot(found.firstp.cost.mean(), found.firstp.quality.mean(), "*k", markersize=12, label="FirstP")
    axes.plot(found.full.cost.mean(), found.full.quality.mean(), "hk", markersize=9, label="all chunks")
    alone = max(found.alone.values(), key=lambda of: of.quality.mean()).quality.mean()
    axes.axhline(alone, color="0.2", linestyle="--", linewidth=1.2, label="best selector alone")
    axes.axvline(BUDGET, color="0.85", linewidth=1, zorder=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("positions read of a document, FirstP's 512 = 1 (log scale)")
    axes.grid(color="0.93")
    axes.set_axisbelow(True)


def _points(outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
    means = np.array([(of.cost.mean(), of.quality.mean()) for of in outcomes])
    return means[:, 0].tolist(), means[:, 1].tolist()
