"""What dashboards are made of: PromQL queries, the kinds of panels, and the frame around them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# What the variables at the top of a dashboard choose.
INSTANCES = 'instance=~"$instance"'
RANKERS = f'{INSTANCES}, ranker=~"$ranker"'

# Codes that are the server's fault. A caller's own are INVALID_ARGUMENT, NOT_FOUND and CANCELLED; for want of
# room or time calls end with RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED.
FAULTS = 'code=~"INTERNAL|UNKNOWN|UNAVAILABLE"'

PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are called: `{{label}}` stands for a label's value."""

    expression: str
    legend: str
    format: PromQueryFormat = PromQueryFormat.TIME_SERIES


def per_second(metric: str, *by: str, where: str = RANKERS) -> str:
    """How fast a counter grows, added up for each combination of the labels `by`."""
    return _total(f"rate({metric}{{{where}}}[$__rate_interval])", by)


def increase(metric: str, *by: str, where: str = RANKERS) -> str:
    """How much a counter grew over the time range of the dashboard."""
    return _total(f"increase({metric}{{{where}}}[$__range])", by)


def now(metric: str, *by: str, where: str = RANKERS) -> str:
    """A gauge, added up for each combination of the labels `by`."""
    return _total(f"{metric}{{{where}}}", by)


def share(part: str, whole: str) -> str:
    """One over the other; nothing where the other is 0."""
    return f"{part} / ({whole} > 0)"


def mean(histogram: str, *by: str, where: str = RANKERS) -> str:
    """The average of what a histogram took in."""
    return share(
        per_second(f"{histogram}_sum", *by, where=where), per_second(f"{histogram}_count", *by, where=where)
    )


def percentile(quantile: float, histogram: str, *by: str, where: str = RANKERS) -> str:
    """A quantile, interpolated between the bounds of a histogram's buckets."""
    return f"histogram_quantile({quantile}, {per_second(f'{histogram}_bucket', 'le', *by, where=where)})"


def percentiles(histogram: str, where: str = RANKERS) -> tuple[Query, ...]:
    """Median, 90th and 99th percentile of all that is selected."""
    return tuple(Query(percentile(q, histogram, where=where), f"p{q * 100:g}") for q in PERCENTILES)


def _total(vector: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) ({vector})" if by else f"sum({vector})"


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


TAG = "farrank"


@dataclass(frozen=True, slots=True)
class Section:
    """A row's title and its panels, from left to right, wrapped at the dashboard's width."""

    title: str
    panels: Sequence[Panel]


def framed(uid: str, title: str, description: str, *sections: Section) -> Dashboard:
    """Put sections under the variables `datasource`, `instance` and `ranker`."""
    dashboard = (
        Dashboard(f"Farrank / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .readonly()
        .link(
            DashboardLink("Farrank")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_values("instance", "Instance", "label_values(farrank_build_info, instance)"))
        .with_variable(
            _values("ranker", "Ranker", 'label_values(farrank_ranker_info{instance=~"$instance"}, ranker)')
        )
    )
    ids = count(1)
    for section in sections:
        dashboard.with_row(Row(section.title).id(next(ids)))
        for panel in section.panels:
            dashboard.with_panel(panel.id(next(ids)))
    return dashboard


def _values(name: str, label: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Also what is counted for no ranker: calls that asked for an unknown one.
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
