"""The kinds of panels: lines over time, one number, a histogram over time, a table."""

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from farrank_dashboards.queries import RANKERS, Query, per_second

Panel = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
LINES_HEIGHT, NUMBER_HEIGHT = 8, 4
# By the number of bounds.
COLOURS = {0: ("green",), 1: ("green", "red"), 2: ("green", "orange", "red")}


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 12,
    stacked: bool = False,
    maximum: float | None = None,
    bounds: Sequence[float] = (),
) -> timeseries.Panel:
    """Series over time, with dashed lines at `bounds`: where it gets tight, and where it is too late."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(LINES_HEIGHT)
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL if stacked else StackingMode.NONE))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["mean", "max", "lastNotNull"])
        )
        .thresholds(_thresholds(bounds))
        .thresholds_style(
            common.GraphThresholdsStyleConfig().mode(
                GraphThresholdsStyleMode.DASHED if bounds else GraphThresholdsStyleMode.OFF
            )
        )
    )
    for target in _targets(queries):
        panel.with_target(target.range())
    return panel if maximum is None else panel.max(maximum)


def number(
    title: str, description: str, unit: str, query: Query, *, width: int = 4, bounds: Sequence[float] = ()
) -> stat.Panel:
    """The latest value, coloured by the bounds that it has passed, over its course."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(NUMBER_HEIGHT)
        .unit(unit)
        # No traffic: a share of nothing.
        .no_value("–")
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(BigValueColorMode.VALUE)
        .thresholds(_thresholds(bounds))
    )
    for target in _targets((query,)):
        panel.with_target(target.range())
    return panel


def spread(
    title: str, description: str, unit: str, histogram: str, *, where: str = RANKERS, width: int = 12
) -> heatmap.Panel:
    """A histogram over time: the darker, the more fell between two bounds."""
    buckets = Query(per_second(f"{histogram}_bucket", "le", where=where), "{{le}}", PromQueryFormat.HEATMAP)
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(LINES_HEIGHT)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .cell_values(heatmap.CellValues().unit("cps"))
        .show_legend()
    )
    for target in _targets((buckets,)):
        panel.with_target(target.range())
    return panel


def rows(title: str, description: str, query: Query, *, width: int) -> table.Panel:
    """One row a series, one column a label."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(LINES_HEIGHT)
        .unit("none")
        .with_transformation(
            DataTransformerConfig(
                id_val="organize", options={"excludeByName": dict.fromkeys(("Time", "Value"), True)}
            )
        )
    )
    for target in _targets((query,)):
        panel.with_target(target.instant())
    return panel


def _targets(queries: Sequence[Query]) -> Iterator[prometheus.Dataquery]:
    for letter, query in zip(ascii_uppercase[: len(queries)], queries, strict=True):
        yield (
            prometheus.Dataquery()
            .ref_id(letter)
            .datasource(SOURCE)
            .expr(query.expression)
            .legend_format(query.legend)
            .format(query.format)
        )


def _thresholds(bounds: Sequence[float]) -> ThresholdsConfig:
    steps = [
        Threshold(value=value, color=colour)
        for value, colour in zip((None, *bounds), COLOURS[len(bounds)], strict=True)
    ]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
