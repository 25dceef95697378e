"""docs/reference/metrics.md lists exactly the server's metrics, each with its type and labels."""

import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from farrank_calls.errors import DroppedAt, Reason
from farrank_cli.spawn import SpawnedServer
from farrank_client import Client
from farrank_server.metrics import BATCH_FAILURES, Metrics

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `((?:farrank|process)_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
ENDINGS = {"_seconds": "s", "_seconds_total": "s", "_bytes": "bytes", "_tokens": "tokens", "_ratio": "ratio"}


@pytest.fixture(scope="module")
def listed() -> dict[str, tuple[str, frozenset[str]]]:
    """Return the type and labels of each metric, as the page lists them."""
    rows = ROW.findall((ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8"))
    names = [name for name, *_ in rows]
    assert len(names) == len(set(names))
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}


def test_every_instrument_is_listed_with_its_labels(
    listed: dict[str, tuple[str, frozenset[str]]],
) -> None:
    for each in vars(Metrics()).values():
        if isinstance(each, MetricWrapperBase):
            name = each._name + ("_total" if each._type == "counter" else "")
            assert listed[name] == (each._type, frozenset(each._labelnames))


def test_the_page_of_a_server_holds_what_is_listed(
    listed: dict[str, tuple[str, frozenset[str]]], server: SpawnedServer
) -> None:
    with Client(server.address) as client:
        client.search_and_rerank("river", ranker="mine")
        client.search_and_rerank("river", ranker="minilm")
    with urllib.request.urlopen(server.metrics_url) as answer:
        page = answer.read().decode()
    types = {
        name: kind
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE)
        if not name.endswith("_created")
    }
    assert types == {name: kind for name, (kind, _) in listed.items()}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            name = sample.name if sample.name in listed else re.sub("_(bucket|count|sum)$", "", sample.name)
            # The page never lists a histogram's own label `le`, but a gauge may have a label of that name.
            assert listed[name][1] == sample.labels.keys() - ({"le"} - listed[name][1]), name


def test_every_reason_is_listed_and_shown_from_the_start() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for reason in (*Reason, *DroppedAt, *BATCH_FAILURES):
        assert f"`{reason}`" in page
    rooms = ("server", "first_stage", "indexes", "lucene", "calls")
    sources = [path.read_text(encoding="utf-8") for room in rooms for path in (ROOT / room).rglob("*.py")]
    raised = {name for source in sources for name in re.findall(r"\b(?:Reason|DroppedAt)\.([A-Z_]+)", source)}
    assert raised == {*Reason.__members__, *DroppedAt.__members__}


def test_units_are_the_names() -> None:
    for name, _, _, unit in ROW.findall(
        (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    ):
        for ending, expected in ENDINGS.items():
            if name.endswith(ending):
                assert unit == expected, name


def test_metrics_named_elsewhere_are_listed(listed: dict[str, tuple[str, frozenset[str]]]) -> None:
    packages = {path.name for path in ROOT.glob("*/farrank_*")}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named = set(re.findall(r"(?<![\w/.])farrank_[a-z_]+[a-z]", page.read_text(encoding="utf-8")))
        assert named - packages <= listed.keys(), page.name
