"""What all dashboards share: the variables, the links between them, the order of rows and panels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from farrank_dashboards.panels import SOURCE, Panel

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
