"""Every part fails under load: `make chaos` runs ten minutes and a hundred kills each, this file a moment.

Every call is answered with the rankers' offline scores, or refused for a reason in
docs/explanation/failures.md. None is lost. No admitted Rerank is refused because the device failed.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.mixed_load import MixedLoad, offline_scores
from support.reliability_report import write_chaos_report
from support.sick_parts import Chaos, SickServer, sick_server
from support.waiting import until

SECONDS = float(os.environ.get("FARRANK_CHAOS_SECONDS", "20"))
SEED = int(os.environ.get("FARRANK_CHAOS_SEED", "20261124"))
# The number of kills of Lucene, and of the device's worker, after the mixed failures.
KILLS = int(os.environ.get("FARRANK_CHAOS_KILLS", "0"))
REPORT = os.environ.get("FARRANK_CHAOS_REPORT", "")

# The longest pause between two failures.
PAUSE_S = 3.0 if SECONDS >= 120 else 0.2

# The gauges of the server's calls.
OF_CALLS = ("farrank_requests_in_flight", "farrank_admitted_tokens", "farrank_held_characters")

WORKER_KILLS = ("lost", "exits", "ends")


async def kill_the_worker(chaos: Chaos, kills: int) -> None:
    """Kill the device's worker a number of times, each time in another way."""
    for number in range(kills):
        words = WORKER_KILLS[number % len(WORKER_KILLS)]
        await chaos.strike_device("worker killed under load", words)
        await asyncio.sleep(chaos.random.uniform(0, 0.5))


async def kill_lucene(chaos: Chaos, kills: int) -> None:
    """Kill the search process a number of times, each time after it has answered for up to six seconds."""
    for _ in range(kills):
        await chaos.kill_searches()
        await asyncio.sleep(chaos.random.uniform(0, 6))


@pytest.mark.timeout(0 if KILLS or SECONDS >= 120 else 900)
async def test_every_call_is_answered_well_or_refused_for_a_reason(
    tiny_rankers: Mapping[str, Path], tmp_path: Path
) -> None:
    offline = await asyncio.to_thread(offline_scores, tiny_rankers)
    async with sick_server(tmp_path, tiny_rankers, small_heap=True) as server:
        load = MixedLoad(server.address, server.http_url, offline, SEED)
        chaos = Chaos(server, load, SEED)
        began_s = time.monotonic()
        loading = asyncio.create_task(load.run())
        try:
            await chaos.run(SECONDS, PAUSE_S)
            mixed_s = time.monotonic() - began_s
            await kill_the_worker(chaos, KILLS)
            await kill_lucene(chaos, KILLS)
        finally:
            load.stop()
            await loading
            if REPORT:
                write_chaos_report(Path(REPORT), chaos, SEED, time.monotonic() - began_s)
        assert load.wrong == []
        # The server learns a moment later that callers left the last calls.
        await until(lambda: not any(map(server.metric, OF_CALLS)))
        check_server(server, chaos)
        assert mixed_s >= SECONDS
        check_counts(load, server)


def check_server(server: SickServer, chaos: Chaos) -> None:
    """Check that the server runs, and has counted and logged the failures."""
    assert server.process.poll() is None
    struck = [each.name for each in chaos.history]
    assert struck
    assert server.metric("farrank_device_state", state="ready") == 1
    killed = sum(name == "Lucene killed" for name in struck)
    assert server.metric("farrank_search_process_ends_total", reason="ended") == killed
    stopped, filled = struck.count("Lucene stopped"), struck.count("Lucene's heap full")
    assert server.metric("farrank_search_process_ends_total", reason="hung") == stopped
    assert server.metric("farrank_search_process_ends_total", reason="heap_full") == filled
    devices = sum(name.startswith(("device", "worker")) for name in struck) - struck.count(
        "device out of memory"
    )
    assert server.metric("farrank_worker_restarts_total") == devices
    assert server.metric("farrank_tokenizer_hangs_total") == struck.count("tokenizer thread stuck")
    lost_lines = server.metric("farrank_log_lines_dropped_total", reason="not_written")
    assert (lost_lines > 0) == ("disk full, indexes reloaded" in struck)


def check_counts(load: MixedLoad, server: SickServer) -> None:
    """Check that no admitted Rerank was refused over the device, and that all calls not left are counted."""
    counts = load.counts()
    assert sum(count for (_, ended), count in counts.items() if ended == "taken twice") == 0
    assert sum(count for (_, ended), count in counts.items() if ended == "lost") == 0
    for reason in ("worker_died", "device_hung", "device_lost"):
        assert server.metric("farrank_rejections_total", reason=reason) == 0
    answered = [
        count for (kind, ended), count in counts.items() if ended == "ok" and kind in ("rerank", "http")
    ]
    assert sum(answered) > 20
