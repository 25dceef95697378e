"""Histograms link to calls by their ids, for clients that accept OpenMetrics."""

import asyncio
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from farrank.v1 import rerank_pb2 as pb
from farrank_server.metrics_page import MetricsPage
from support.keyed_endpoints import Endpoints

LEAD = {
    "farrank_request_duration_seconds",
    "farrank_version_duration_seconds",
    "farrank_stage_duration_seconds",
    "farrank_first_stage_duration_seconds",
}


def scraped(page: MetricsPage, accept: str) -> tuple[str, str]:
    with urllib.request.urlopen(urllib.request.Request(page.url, headers={"Accept": accept})) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


async def test_histograms_lead_to_calls_by_their_ids(endpoints: Endpoints) -> None:
    key, its_id = await endpoints.key("team"), "i" * 64
    shown = (("x-api-key", key), ("x-request-id", its_id))
    await endpoints.stub.SearchAndRerank(
        pb.SearchAndRerankRequest(query="river", index="things"), metadata=shown
    )
    labels = {"door": "grpc", "method": "SearchAndRerank", "ranker": "maxp", "code": "OK"}
    await endpoints.counted(1, "requests_total", **labels)
    page = MetricsPage("127.0.0.1", 0, endpoints.metrics)
    try:
        # The header that Prometheus sends.
        accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        kind, text = await asyncio.to_thread(scraped, page, accept)
        assert kind.startswith("application/openmetrics-text")
        leading = set()
        for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
            for sample in family.samples:
                if sample.exemplar is not None:
                    assert sample.exemplar.labels == {"request_id": its_id}
                    leading.add(family.name)
        assert leading == LEAD
        kind, text = await asyncio.to_thread(scraped, page, "text/plain")
        assert kind.startswith("text/plain")
        assert its_id not in text
    finally:
        page.close()
