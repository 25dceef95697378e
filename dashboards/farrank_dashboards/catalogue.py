"""All dashboards, by the name of the file that Grafana reads."""

from collections.abc import Callable, Mapping

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from farrank_dashboards.admission import admission
from farrank_dashboards.batching import batching
from farrank_dashboards.device import device
from farrank_dashboards.documents import documents
from farrank_dashboards.first_stage import first_stage
from farrank_dashboards.latency import latency
from farrank_dashboards.traffic import traffic

DASHBOARDS: Mapping[str, Callable[[], Dashboard]] = {
    "traffic.json": traffic,
    "latency.json": latency,
    "batching.json": batching,
    "admission.json": admission,
    "documents.json": documents,
    "device.json": device,
    "first_stage.json": first_stage,
}


def rendered(name: str) -> str:
    """Write one dashboard as the JSON of its file; the same every time."""
    return JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).encode(DASHBOARDS[name]().build()) + "\n"
