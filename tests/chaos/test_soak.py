"""Nothing grows: `make soak` keeps a server under mixed load for an hour, this file by default for a moment.

Samples are taken at most once a second: memory, threads and open files of the server and of the search
process. The slope of each quantity over the last four fifths of the time is computed by Theil and Sen (the
median of the slopes of all pairs, which no single sample moves). The growth is this slope times that time.

The allowed growth:

- Memory, 32 MiB: an allocator keeps pages of calls that came together, and for a while new sizes of batches
come for torch. In an hour, with some 100,000 calls, this is a third of a kilobyte per call; a leak of a
tensor, a text or a call's own objects is larger.
- Threads, half of one, and descriptors, 2: pools start their threads in the first fifth. Sockets come and go
with the samples of the metrics.
- The search process's memory has no limit on its slope, because Java fills its heap before it collects. The
process may have its heap of 1 GiB and half a GiB more.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from support.mixed_load import MixedLoad, offline_scores
from support.reliability_report import write_soak_report
from support.sick_parts import sick_server

# In `make test` the run ends after this many calls. On a busy machine, a given number of seconds may not be
# enough for the figures to settle.
SHORT_CALLS = 400
SECONDS = float(os.environ.get("FARRANK_SOAK_SECONDS", "8"))
SEED = int(os.environ.get("FARRANK_CHAOS_SEED", "20261124"))
REPORT = os.environ.get("FARRANK_SOAK_REPORT", "")

# Starting Java takes as long as the short run.
IS_SHORT = SECONDS < 60
SETTLED = 0.2
MAX_SAMPLES = 600

MEMORY, THREADS, FILES = "memory, MiB", "threads", "open files"
ALLOWED_GROWTH = {MEMORY: 32.0, THREADS: 0.5, FILES: 2.0}
MAX_SEARCH_MEMORY_MIB = 1536.0


def sampled(process_id: int) -> dict[str, float]:
    """Return the current figures of a process."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        MEMORY: int(status["VmRSS"].split()[0]) / 1024,
        THREADS: float(status["Threads"]),
        FILES: float(len(list(Path(f"/proc/{process_id}/fd").iterdir()))),
    }


def growth(samples: list[tuple[float, float]]) -> float:
    """Return the growth over the time of the samples (seconds, value), by the median slope of pairs."""
    slopes = [(b - a) / (to - at) for (at, a), (to, b) in combinations(samples, 2) if to > at]
    return median(slopes) * (samples[-1][0] - samples[0][0])


def test_growth_is_that_of_the_slope_whatever_single_samples_say() -> None:
    flat = [(float(at), 100.0 + (at % 3)) for at in range(60)]
    assert abs(growth(flat)) < 0.1
    assert abs(growth([*flat[:30], (29.5, 900.0), *flat[30:]])) < 0.1
    leak = [(at, value + 0.6 * at) for at, value in flat]
    assert growth(leak) == pytest.approx(0.6 * 59, rel=0.05)
    assert growth(leak) > ALLOWED_GROWTH[MEMORY]


@pytest.mark.timeout(900 if IS_SHORT else 0)
async def test_memory_threads_and_descriptors_are_flat(
    tiny_rankers: Mapping[str, Path], tmp_path: Path
) -> None:
    offline = await asyncio.to_thread(offline_scores, tiny_rankers)
    async with sick_server(tmp_path, tiny_rankers, searches=not IS_SHORT) as server:
        load = MixedLoad(server.address, server.http_url, offline, SEED, searches=not IS_SHORT)
        loading = asyncio.create_task(load.run())
        began_s = time.monotonic()
        processes = {"server": server.process.pid}
        if not IS_SHORT:
            processes["search process"] = server.search_processes()[0]
        samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
        done = 0.0
        while done < 1:
            now_s = time.monotonic() - began_s
            done = len(load.outcomes) / SHORT_CALLS if IS_SHORT else now_s / SECONDS
            for name, process_id in processes.items() if done > SETTLED else ():
                for what, value in sampled(process_id).items():
                    samples.setdefault((name, what), []).append((now_s, value))
            await asyncio.sleep(min(1.0, SECONDS / 30) if SECONDS < MAX_SAMPLES else SECONDS / MAX_SAMPLES)
        load.stop()
        await loading
        grown = {of: growth(each) for of, each in samples.items()}
        if REPORT:
            write_soak_report(Path(REPORT), load, SECONDS, samples, grown)
        assert load.wrong == []
        assert {each.ended for each in load.outcomes} <= {"ok", "late", "left", "backlog"}
        for (name, what), grew in grown.items():
            if (name, what) == ("search process", MEMORY):
                assert max(value for _, value in samples[name, what]) < MAX_SEARCH_MEMORY_MIB
            else:
                assert grew <= ALLOWED_GROWTH[what], (name, what, samples[name, what][:: len(samples) or 1])
