"""`ServeGrpc`, which has no port, does all that a replica requires of a gRPC listener."""

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

from farrank_scale.replica import ServeGrpc
from farrank_server.metrics import Metrics
from farrank_server.service.methods import SERVICE


def test_it_reports_as_a_listener_does() -> None:
    listener, metrics = ServeGrpc(["minilm"]), Metrics()
    listener.show_open(metrics)
    assert metrics.registry.get_sample_value("farrank_open_calls", {"kind": "reflection streams"}) == 0
    listener.report_load(lambda: 1.5)
    listener.report(serving=True)
    assert listener.is_serving(SERVICE.full_name)
    listener.report_not_serving()
    assert not listener.is_serving(SERVICE.full_name)
    assert not listener.is_followed()
