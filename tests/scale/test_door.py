"""The door of a replica on Ray, which has no port, does all that a replica asks of a gRPC listener."""

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

from farrank_scale.replica import ServeDoor
from farrank_server.metrics import Metrics
from farrank_server.service.methods import SERVICE


def test_it_reports_as_a_listener_does() -> None:
    door, metrics = ServeDoor(["minilm"]), Metrics()
    door.show_open(metrics)
    assert metrics.registry.get_sample_value("farrank_open_calls", {"kind": "reflection streams"}) == 0
    door.report_load(lambda: 1.5)
    door.report(serving=True)
    assert door.is_serving(SERVICE.full_name)
    door.report_not_serving()
    assert not door.is_serving(SERVICE.full_name)
    assert not door.is_followed()
