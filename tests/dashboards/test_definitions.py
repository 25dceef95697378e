"""Mistakes in a definition: the message names the file, the panel, and the problem."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from farrank_dashboards.panels import read


def written(folder: Path, panel: Any, **others: Any) -> Path:
    definition = {
        "title": "Things",
        "description": "What about them?",
        "sections": [{"title": "All", "panels": [panel]}],
        **others,
    }
    path = folder / "things.yaml"
    path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    return path


def panel(**others: Any) -> dict[str, Any]:
    return {
        "kind": "stat",
        "title": "How many",
        "description": "Their number.",
        "unit": "none",
        "queries": {"things": "sum(things{$OURS})"},
        **others,
    }


OURS = {"OURS": '$RANKERS, mine="yes"'}


def test_selectors_of_the_definition_are_written_out(tmp_path: Path) -> None:
    dashboard = read(written(tmp_path, panel(), selectors=OURS)).build()
    assert dashboard.uid == "farrank-things"
    assert dashboard.panels is not None
    expression = dashboard.panels[1].targets[0].expr  # type: ignore[union-attr,index]  # the first is the row
    release = 'namespace="$namespace", job="$job"'
    assert expression == f'sum(things{{{release}, instance=~"$instance", ranker=~"$ranker", mine="yes"}})'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (panel(widht=8), r"^things\.yaml: panel 'How many': .*'widht'"),
        (panel(stacked=True), "'stacked'"),
        ({"kind": "stat", "title": "Bare"}, "'Bare': .*missing .*'description'"),
        (panel(kind="pie"), "no kind 'pie'; the kinds are timeseries, stat, heatmap, table"),
        (panel(width="half"), "width cannot be 'half'"),
        (
            panel(queries={"things": "sum(things{$THEIRS})"}),
            r"no selector \$THEIRS; the selectors are .*RANKERS, OURS",
        ),
        (panel(percentiles="things_bucket"), "either queries or percentiles"),
        (panel(bounds=[1, 2, 3]), "3 bounds are given; a panel has at most 2"),
        ("sum(things)", "'sum\\(things\\)' is not a mapping"),
    ],
)
def test_a_mistake_in_a_panel_is_named(tmp_path: Path, wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(written(tmp_path, wrong, selectors=OURS))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"section": []}, r"^things\.yaml: .*'section'"),
        ({"sections": [{"title": "All", "panel": []}]}, "'panel'"),
        ({"selectors": {"OURS": "$THEIRS"}}, "THEIRS"),
    ],
)
def test_a_mistake_around_the_panels_is_named(tmp_path: Path, wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(written(tmp_path, panel(), **wrong))


def test_invalid_yaml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "things.yaml"
    path.write_text("title: [", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^things\.yaml: while parsing"):
        read(path)
