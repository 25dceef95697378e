"""The evidence page behind a real HTTP endpoint, with candidates from memory and a device under control."""

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from farrank_rankers.tokens import EncoderInput
from farrank_server.access.keys import Keys
from farrank_server.config.schema import HttpConfig, ListenConfig, ServerConfig
from farrank_server.http.application import HttpApplication
from farrank_server.http.json_bodies import to_json
from farrank_server.http.listen import HttpListener
from farrank_server.metrics import Endpoint
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from support.engine_bench import Bench, Faulty, opened_bench
from support.memory_first_stage import MemoryFirstStage, in_memory

RIVER = "The river 🏞️ rises in the mountains, passes a cafe\u0301 🇨🇭, and goes on to the sea. "
SCRIPT = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"
TEXTS = {
    "rhine": RIVER * 150,
    "danube": "Far from the sea, a river is a brook 🙂. " * 40,
    "sea": "A river reaches the sea.\n" * 30,
    SCRIPT: f"river {SCRIPT} " * 20,
    "bread": "Flour and salt. " * 20,
}
RIVER_QUESTION = "where does the river rise"
# Of "things": the questions of the judged view.
JUDGED = {
    "index": "things",
    "questions": [
        {"id": "1", "text": RIVER_QUESTION, "grades": {"danube": 2, "sea": 1, "rhine": 0}},
        {"id": "2", "text": "sea brook", "grades": {"sea": 1}},
        {"id": "3", "text": "flour and salt", "grades": {"rhine": 1}},
    ],
}
# The longest hold of the device, if a test fails to release it.
HELD_S = 60


@dataclass
class Site:
    """A served page. The device waits before each batch until `goes_on` is set."""

    url: str
    bench: Bench[Faulty]
    goes_on: threading.Event


@asynccontextmanager
async def opened_site(tiny_rankers: dict[str, Path], keys: Path | None = None) -> AsyncIterator[Site]:
    """Serve the page over a real engine with tiny rankers. Require an API key if a file of keys is given."""
    goes_on = threading.Event()
    goes_on.set()

    def before(inputs: Sequence[EncoderInput]) -> None:
        goes_on.wait(HELD_S)

    first_stage = MemoryFirstStage()
    first_stage.documents = TEXTS
    config = ServerConfig(listen=ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0)))
    async with opened_bench(tiny_rankers, lambda runtime: Faulty(runtime, before)) as bench:
        service = RerankService(config, bench.engine, await in_memory(bench, first_stage), bench.metrics)
        asked_for = Keys(keys, bench.metrics) if keys else None
        guard = Guard(Endpoint.HTTP, bench.metrics, {"maxp", "biencoder", "both"}, "maxp", asked_for)
        listener = HttpListener(config.listen, config.limits)
        unread = UnreadAnswers(config.limits, bench.metrics)
        receiving = ReceivingBudget(config.limits, bench.metrics)
        judged = {"things": to_json(JUDGED)}
        await listener.open(HttpApplication(config, service, guard, unread, receiving, judged))
        try:
            yield Site(f"{listener.url}/", bench, goes_on)
        finally:
            goes_on.set()
            await listener.close(1)
