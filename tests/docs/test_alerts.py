"""docs/reference/alerts.md has a paragraph for every alert, and for nothing else."""

import re
from pathlib import Path
from typing import Any

import yaml

from farrank_calls.errors import Reason
from farrank_calls.telemetry.log_output import dropped_lines
from farrank_first_stage.kinds import INDEX_KINDS
from farrank_first_stage.lucene_host import SearchState
from farrank_server.config.schema import ServerConfig
from farrank_server.metrics import BATCH_FAILURES
from farrank_settings.sources import keys_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")


def alerts() -> dict[str, Any]:
    groups = yaml.safe_load((ROOT / "dashboards/prometheus/rules/alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def paragraphs() -> dict[str, str]:
    _, *found = re.split(r"^## (Farrank\w+)$", PAGE, flags=re.MULTILINE)
    texts = [" ".join(text.partition("\n## ")[0].split()) for text in found[1::2]]
    assert len(found[::2]) == len(set(found[::2]))
    return dict(zip(found[::2], texts, strict=True))


def test_every_alert_has_a_paragraph_that_says_what_it_means_and_what_to_do() -> None:
    assert list(paragraphs()) == list(alerts())
    for name, text in paragraphs().items():
        parts = re.fullmatch(r"\*\*Means:\*\* (.+) \*\*Look at:\*\* (.+) \*\*Do:\*\* (.+)", text)
        assert parts, name
        assert all(len(part) >= 30 for part in parts.groups()), name


def test_bounds_of_the_paragraphs_are_the_alerts() -> None:
    """The paragraphs name the rules' percentages."""
    for name, alert in alerts().items():
        bound = re.search(r"(?:ratio|ratio_rate5m) > (0\.\d+)", alert["expr"])
        if bound and "latency" not in alert["expr"]:
            assert (
                f"more than {float(bound[1]) * 100:g} %" in paragraphs()[name]
                or "the same" in (paragraphs()[name])
            ), name


def test_names_in_the_paragraphs_exist() -> None:
    titles = {
        yaml.safe_load(path.read_text(encoding="utf-8"))["title"]
        for path in (ROOT / "dashboards" / "definitions").glob("*.yaml")
    }
    keys = set(keys_of(ServerConfig, INDEX_KINDS))
    last = {key.rpartition(".")[2] for key in keys}
    labels = {*map(str, Reason), *map(str, SearchState), *BATCH_FAILURES, *dropped_lines}
    labels |= {"reason", "first_stage"}
    for name, text in paragraphs().items():
        quoted = set(re.findall(r'"([A-Z][a-z ]+)"', text))
        assert quoted <= titles, name
        for code in re.findall(r"`([a-z]+[_.][a-z_.]+)`", text):
            # tests/docs/test_metrics.py checks the metrics' own page.
            assert (
                code.startswith("farrank_")
                or code in keys
                or code in labels
                or (code in last and "." not in code)
            ), (name, code)
