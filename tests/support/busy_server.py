"""A server that has started each of its threads, for a process of its own."""

import asyncio
import json
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from farrank_calls.key_file import add_key
from farrank_calls.telemetry.config import LoggingConfig, TracingConfig
from farrank_calls.telemetry.log_output import configure_logging
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.impact import ImpactConfig
from farrank_server.config.schema import HttpConfig, ListenConfig, ServerConfig
from farrank_server.replica import Replica
from support.waiting import until


async def serve(index: Path, collector: str, folder: Path) -> list[str]:
    """Return the names of its threads.

    `index` is an index with impacts, `collector` the URL of a collector of traces, and `folder` is empty.
    """
    configure_logging(LoggingConfig())
    key = add_key(folder / "keys.toml", "reader", {})
    listen = ListenConfig(port=0, metrics_port=0, http=HttpConfig(port=0), keys=folder / "keys.toml")
    config = ServerConfig(
        listen=listen,
        first_stage=FirstStageConfig(indexes={"impacts": ImpactConfig(index, tokenizer="embedded")}),
        tracing=TracingConfig(collector, sample_ratio=1.0),
    )
    async with Replica(config) as replica, aiohttp.ClientSession() as session:
        assert replica.metrics_url is not None
        # A connection to the metrics page has a thread of its own.
        place = urlsplit(replica.metrics_url)
        assert place.hostname is not None
        with socket.create_connection((place.hostname, place.port or 0)) as scraping:
            # Long bodies are read on threads of their own.
            body = json.dumps({"query": "sea", "texts": ["the river reaches the sea"]}) + " " * 2**20
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            async with session.post(f"{replica.http_url}/rerank", data=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
            await until(lambda: any("process_request_thread" in each.name for each in threading.enumerate()))
            names = [each.name for each in threading.enumerate()]
            scraping.shutdown(socket.SHUT_RDWR)
    return names


def print_threads() -> None:
    """Serve with the three arguments of the command, and print the names of the threads as JSON."""
    index, collector, folder = sys.argv[1:]
    print(json.dumps(asyncio.run(serve(Path(index), collector, Path(folder)))))
