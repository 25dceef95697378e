"""Build Grafana dashboards from definitions (dashboards/definitions/*.yaml)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import yaml
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

Panel = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel

TAG = "farrank"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# Short names of selectors with the variables at the top of a dashboard. A definition may add its own.
RELEASE = 'namespace="$namespace", job="$job"'
INSTANCES = f'{RELEASE}, instance=~"$instance"'
SELECTORS = {
    "RELEASE": RELEASE,
    "INSTANCES": INSTANCES,
    "RANKERS": f'{INSTANCES}, ranker=~"$ranker"',
}
# The colours by the number of bounds.
COLOURS = {0: ("green",), 1: ("green", "red"), 2: ("green", "orange", "red")}
# The types of a definition's values. The parameters of the functions below are the allowed keys.
TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("title", "description", "kind", "unit", "percentiles"), str),
    **dict.fromkeys(("selectors", "queries"), dict),
    **dict.fromkeys(("sections", "panels", "bounds"), list),
    "width": int,
    "stacked": bool,
    "maximum": (int, float),
}


def read(path: Path) -> Dashboard:
    """Build the dashboard of a definition.

    Raises: ValueError naming the file, the panel, and the key, value or selector that is wrong.
    """
    try:
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _dashboard(f"{TAG}-{path.stem.replace('_', '-')}", **_typed(definition))
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def _typed(keys: Any) -> dict[str, Any]:
    if not isinstance(keys, dict):
        raise TypeError(f"{keys!r} is not a mapping of keys to values")
    for key, value in keys.items():
        if key in TYPES and not isinstance(value, TYPES[key]):
            raise TypeError(f"{key} cannot be {value!r}")
    return keys


@dataclass(frozen=True, slots=True)
class Section:
    """The title and panels of a row. Panels run from left to right and wrap at the dashboard's width."""

    title: str
    panels: Sequence[Mapping[str, Any]]


def _dashboard(
    uid: str,
    *,
    title: str,
    description: str,
    sections: Sequence[Mapping[str, Any]],
    selectors: Mapping[str, str] | None = None,
) -> Dashboard:
    """Build a dashboard of sections with the variables for source, namespace, job, instance and ranker."""
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
        # A single choice of each, so that figures of two releases never add up. If no series has a namespace,
        # the value is empty.
        .with_variable(_variable("namespace", "Namespace", "label_values(farrank_build_info, namespace)"))
        .with_variable(
            _variable("job", "Job", 'label_values(farrank_build_info{namespace="$namespace"}, job)')
        )
        .with_variable(
            _choice("instance", "Instance", f"label_values(farrank_build_info{{{RELEASE}}}, instance)")
        )
        .with_variable(
            _choice("ranker", "Ranker", f"label_values(farrank_ranker_info{{{INSTANCES}}}, ranker)")
        )
    )
    own = {name: _written_out(text, SELECTORS) for name, text in (selectors or {}).items()}
    ids = count(1)
    for section in (Section(**_typed(each)) for each in sections):
        dashboard.with_row(Row(section.title).id(next(ids)))
        for keys in map(_typed, section.panels):
            try:
                panel = _panel(SELECTORS | own, **keys)
            except (TypeError, ValueError) as error:
                raise ValueError(f"panel {keys.get('title')!r}: {error}") from error
            dashboard.with_panel(panel.id(next(ids)))
    return dashboard


def _variable(name: str, label: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _choice(name: str, label: str, query: str) -> QueryVariable:
    return (
        _variable(name, label, query)
        .multi(True)
        .include_all(True)
        # This also matches series without a ranker: calls that ask for an unknown one.
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _panel(
    selectors: Mapping[str, str],
    *,
    kind: str,
    title: str,
    description: str,
    queries: Mapping[str, str] | None = None,
    percentiles: str | None = None,
    width: int | None = None,
    **options: Any,
) -> Panel:
    """Build a panel of a kind. `options` are the parameters of the kind's function in KINDS.

    `queries` maps the names of series to expressions; `{{label}}` in a name stands for a label's value.
    `percentiles` selects a histogram's buckets and shows its median, 90th and 99th percentile.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    build, form, usual_width, height = KINDS[kind]
    if (queries is None) == (percentiles is None):
        raise ValueError("a panel needs either queries or percentiles, not both")
    if queries is None:
        rate = f"sum by (le) (rate({percentiles}[$__rate_interval]))"
        queries = {f"p{100 * q:g}": f"histogram_quantile({q}, {rate})" for q in (0.5, 0.9, 0.99)}
    panel = build(**options).title(title).description(description).datasource(SOURCE)
    panel.span(width or usual_width).height(height)
    for letter, legend in zip(ascii_uppercase[: len(queries)], queries, strict=True):
        target = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).legend_format(legend).format(form)
        target.expr(_written_out(queries[legend], selectors))
        panel.with_target(target.instant() if form == PromQueryFormat.TABLE else target.range())
    return panel


def _written_out(text: str, selectors: Mapping[str, str]) -> str:
    """Replace names of selectors, such as `$RANKERS`, by the selectors."""

    def selector(name: re.Match[str]) -> str:
        if name[1] not in selectors:
            raise ValueError(f"there is no selector ${name[1]}; the selectors are {', '.join(selectors)}")
        return selectors[name[1]]

    return re.sub(r"\$([A-Z]+)", selector, text)


def timeseries_panel(
    *, unit: str, stacked: bool = False, maximum: float | None = None, bounds: Sequence[float] = ()
) -> timeseries.Panel:
    """Series over time, with dashed lines at `bounds`: the first is a warning, the second the limit."""
    panel = (
        timeseries.Panel()
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
    return panel if maximum is None else panel.max(maximum)


def stat_panel(*, unit: str, bounds: Sequence[float] = ()) -> stat.Panel:
    """The latest value, coloured by the bounds that it exceeds, over a graph of its course."""
    return (
        stat.Panel()
        .unit(unit)
        # Without traffic, a share has no value.
        .no_value("–")
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(BigValueColorMode.VALUE)
        .thresholds(_thresholds(bounds))
    )


def heatmap_panel(*, unit: str) -> heatmap.Panel:
    """A histogram over time: a darker cell has more values between its bounds."""
    return (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .cell_values(heatmap.CellValues().unit("cps"))
        .show_legend()
    )


def table_panel() -> table.Panel:
    """One row per series, one column per label."""
    hidden = {"excludeByName": {"Time": True, "Value": True}}
    return (
        table.Panel()
        .unit("none")
        .with_transformation(DataTransformerConfig(id_val="organize", options=hidden))
    )


# Each kind's function, the format of its queries' answers, its usual width and its height.
KINDS: Mapping[str, tuple[Callable[..., Panel], PromQueryFormat, int, int]] = {
    "timeseries": (timeseries_panel, PromQueryFormat.TIME_SERIES, 12, 8),
    "stat": (stat_panel, PromQueryFormat.TIME_SERIES, 4, 4),
    "heatmap": (heatmap_panel, PromQueryFormat.HEATMAP, 12, 8),
    "table": (table_panel, PromQueryFormat.TABLE, 12, 8),
}


def _thresholds(bounds: Sequence[float]) -> ThresholdsConfig:
    if len(bounds) not in COLOURS:
        raise ValueError(f"{len(bounds)} bounds are given; a panel has at most {max(COLOURS)}")
    steps = [
        Threshold(value=value, color=colour)
        for value, colour in zip((None, *bounds), COLOURS[len(bounds)], strict=True)
    ]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
