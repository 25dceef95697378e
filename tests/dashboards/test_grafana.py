"""The dashboards' files: as their definitions make them, laid out without overlap, every panel explained."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from farrank_dashboards.__main__ import DASHBOARDS, GRAFANA, rendered

ROOT = Path(__file__).parents[2]
WIDTH = 24
# A metric of Farrank's or of the process, with or without its selector.
METRIC = re.compile(r"\b((?:instance:)?(?:farrank|process)[:_][\w:]+)({[^}]*})?")
# Grafana's ids of units. It would show an unknown name as a suffix.
UNITS = {"s", "reqps", "cps", "ops", "percentunit", "bytes", "short", "none"}


def read(name: str) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads((GRAFANA / name).read_text(encoding="utf-8"))
    return dashboard


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in read(name)["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for name in DASHBOARDS:
        for panel in panels(name):
            yield from (target["expr"] for target in panel["targets"])


def test_every_definition_has_its_file() -> None:
    assert {path.name for path in GRAFANA.glob("*.json")} == set(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_file_is_what_its_definition_makes(name: str) -> None:
    stored = (GRAFANA / name).read_text(encoding="utf-8")
    assert stored == rendered(name), "python -m farrank_dashboards writes it anew"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_their_rows_without_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read(name)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH, panel["title"]
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
            )
        )
        assert not taken & cells, panel["title"]
        taken |= cells
    height = 1 + max(y for _, y in taken)
    assert len(taken) == WIDTH * height, "a gap"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    titles = [panel["title"] for panel in panels(name)]
    assert len(titles) == len(set(titles))
    assert len({panel["id"] for panel in read(name)["panels"]}) == len(read(name)["panels"])
    for panel in panels(name):
        assert len(panel["description"]) > 12, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        heatmap = panel["type"] == "heatmap"
        defaults = panel["options"]["yAxis"] if heatmap else panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["legendFormat"] or panel["type"] == "table", panel["title"]
            for metric, selector in re.findall(METRIC, target["expr"]):
                assert 'namespace="$namespace", job="$job"' in selector, (panel["title"], metric)
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["showLegend"]
        if panel["type"] in ("timeseries", "stat"):
            bounds = [step["value"] for step in defaults["thresholds"]["steps"]]
            assert bounds[0] is None
            assert bounds[1:] == sorted(bounds[1:])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_dashboard_has_the_same_variables_and_finds_the_others(name: str) -> None:
    dashboard = read(name)
    variables = {each["name"]: each["type"] for each in dashboard["templating"]["list"]}
    queried = ("namespace", "job", "instance", "ranker")
    assert variables == {"datasource": "datasource", **dict.fromkeys(queried, "query")}
    # A dashboard shows one release, because sums over two would mean nothing.
    for each in dashboard["templating"]["list"]:
        if each["name"] in ("namespace", "job"):
            assert not each.get("multi")
            assert not each.get("includeAll")
    assert dashboard["uid"] == "farrank-" + name.removesuffix(".json").replace("_", "-")
    (link,) = dashboard["links"]
    assert link["tags"] == dashboard["tags"]


def test_every_metric_of_the_server_is_shown() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(farrank_\w+)` \|", page, re.MULTILINE))
    used = {
        re.sub("_(bucket|count|sum)$", "", metric)
        for expression in expressions()
        for metric in re.findall(r"farrank_\w+", expression)
    }
    assert used == listed


def test_grafana_finds_the_files_and_prometheus() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    scrape = yaml.safe_load((ROOT / "dashboards/prometheus/prometheus.yaml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/farrank.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert not provider["allowUiUpdates"]
