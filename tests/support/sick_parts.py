"""A server under load whose parts can be made to fail, one at a time, and the times of these failures."""

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

from prometheus_client.parser import text_string_to_metric_families

from farrank_cli.main import main
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from support import forked
from support.mixed_load import COLLECTION, MEMBERS, MixedLoad
from support.sick_server import READER_HANGS_AFTER_S, SMALL_HEAP

# No recovery may take longer. A JVM starts in seconds, or in tens of seconds on a busy machine.
WELL_AFTER_S = 120.0

# Shorter than the defaults (docs/explanation/failures.md), so that each failure is detected within seconds.
DEVICE_HANGS_AFTER_S = 2.0
SEARCHES_HANG_AFTER_S = 3.0
READERS_HANG_AFTER_S = 3.0

RERANKS = ("rerank", "http")
SEARCHES = ("search",)


@dataclass(frozen=True, slots=True)
class Struck:
    """A failure: when it began, and when the first call was answered well that began after it."""

    name: str
    at_s: float
    well_s: float

    @property
    def recovery_s(self) -> float:
        """Return how long callers saw the failure."""
        return self.well_s - self.at_s


@dataclass
class SickServer:
    """The running server. `struck` lists the failures of `sick_server` that happened, with their times."""

    process: forked.Popen[str]
    address: str
    http_url: str
    metrics_url: str
    log: Path
    index: Path
    pid_file: Path
    struck: list[tuple[str, float]] = field(default_factory=list)

    def order(self, words: str) -> None:
        """Order a failure of the device or of a tokenizer thread."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def metric(self, name: str, **labels: str) -> float:
        """Read a metric from the server's page, summed over the labels that are not given."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def search_processes(self) -> list[int]:
        """Return the ids of the search processes: there are two while indexes are reloaded."""
        processes = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                lines = dict(
                    line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line
                )
                command = status.with_name("cmdline").read_text()
            except OSError:
                continue  # the process has ended meanwhile
            is_ours = lines.get("PPid") == str(self.process.pid) and "search_child" in command
            if is_ours and not lines["State"].startswith("Z"):
                processes.append(int(status.parent.name))
        return processes

    def listen(self) -> None:
        """Record the failures until the server ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("struck "):
                _, name, at_s = line.split()
                self.struck.append((name, float(at_s)))


@asynccontextmanager
async def sick_server(
    folder: Path,
    tiny_rankers: Mapping[str, Path],
    *,
    searches: bool = True,
    small_heap: bool = False,
    settings: Sequence[str] = (),
) -> AsyncIterator[SickServer]:
    """Start a server of three rankers, and with `searches` an index, whose parts can be made to fail.

    Java's heap can be filled only with `small_heap`.
    """
    collection, index, pid_file = folder / "collection.jsonl", folder / "index", folder / "farrank.pid"
    lines = (json.dumps({"id": doc_id, "text": text * 40}) for doc_id, text in COLLECTION.items())
    collection.write_text("\n".join(lines))
    save_ensemble(Ensemble({name: open_ranker(tiny_rankers[name]) for name in MEMBERS}), folder / "both")
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in MEMBERS]
    # The answers are compared with offline scores, which are those of whole documents.
    arguments += [f"--set=rankers.{name}.depth.mode=all" for name in MEMBERS]
    arguments += [f"--ranker=both={folder / 'both'}", f"--pid-file={pid_file}"]
    if searches:
        maxp = tiny_rankers["maxp"]
        building = ["index", str(collection), "--out", str(index), "--tokens", str(maxp)]
        assert await asyncio.to_thread(main, building) == 0
        shutil.copytree(index, folder / "other")
        arguments += [f"--index=things={index}"]
    arguments += [f"--set=device.hang_after_s={DEVICE_HANGS_AFTER_S}", "--http-port=0", "--log-level=info"]
    arguments += [f"--set=first_stage.hang_after_s={SEARCHES_HANG_AFTER_S}", "--port=0", "--metrics-port=0"]
    arguments += settings
    environment = {**os.environ, READER_HANGS_AFTER_S: str(READERS_HANG_AFTER_S)}
    if small_heap:
        environment[SMALL_HEAP] = "1"
    code = "import sys; from support.sick_server import serve; serve(sys.argv[1:])"
    command = [sys.executable, "-c", code, *arguments]
    log = folder / "log"
    with (
        log.open("wb") as errors,
        forked.Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, env=environment, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            healthy = await asyncio.to_thread(process.stdout.readline)
            assert healthy.startswith("healthy "), log.read_text()[-3000:]
            fields = dict(each.split("=", 1) for each in healthy.split()[1:])
            server = SickServer(
                process, fields["grpc"], fields["http"], fields["metrics"], log, index, pid_file
            )
            threading.Thread(target=server.listen, daemon=True).start()
            yield server
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, WELL_AFTER_S)
            finally:
                process.kill()


class Chaos:
    """Makes parts of a server fail at random, one at a time, and waits for the recovery of each."""

    def __init__(self, server: SickServer, load: MixedLoad, seed: int) -> None:
        self.server, self.load = server, load
        self.random = random.Random(seed)
        self.history: list[Struck] = []
        self.sicknesses: dict[str, Callable[[], Awaitable[None]]] = {
            "Lucene killed": self.kill_searches,
            "Lucene stopped": self.stop_searches,
            "Lucene's heap full": self.fill_heap,
            "device lost": lambda: self.strike_device("device lost", "lost"),
            "device thread ended by a library": lambda: self.strike_device(
                "device thread ended by a library", "exits"
            ),
            "device thread ended": lambda: self.strike_device("device thread ended", "ends"),
            # Long enough to be found, and over before it strikes again: a second hung thread is one too many.
            "device hung": lambda: self.strike_device("device hung", "hangs 12"),
            "device out of memory": lambda: self.strike_device("device out of memory", "memory"),
            "tokenizer thread stuck": self.strike_tokenizer,
            "disk full, indexes reloaded": self.fill_disk,
            "index replaced, reloaded": self.replace_index,
        }

    async def run(self, seconds: float, pause_s: float) -> None:
        """Cause failures for a time, each kind once before any repeats, with pauses up to `pause_s`."""
        ends_s = time.monotonic() + seconds
        deck: list[str] = []
        while time.monotonic() < ends_s:
            deck = deck or self.random.sample(sorted(self.sicknesses), len(self.sicknesses))
            await self.sicknesses[deck.pop()]()
            await asyncio.sleep(self.random.uniform(0, pause_s))

    async def kill_searches(self) -> None:
        """Kill the search process."""
        os.kill(await self._searching(), signal.SIGKILL)
        await self._well("Lucene killed", time.monotonic(), SEARCHES)

    async def stop_searches(self) -> None:
        """Stop the search process: it accepts requests, but does not answer."""
        os.kill(await self._searching(), signal.SIGSTOP)
        await self._well("Lucene stopped", time.monotonic(), SEARCHES)

    async def fill_heap(self) -> None:
        """Fill the search process's heap for good, so that no search has room."""
        os.kill(await self._searching(), signal.SIGUSR1)
        await self._well("Lucene's heap full", time.monotonic(), SEARCHES)

    async def strike_device(self, name: str, words: str) -> None:
        """Make the device fail at the next batch."""
        await self._well(name, await self._strike(words), RERANKS)

    async def strike_tokenizer(self) -> None:
        """Make a tokenizer thread hang at the next text."""
        before = self.server.metric("farrank_tokenizer_hangs_total")
        at_s = await self._strike("tokenizer 8")
        await self._until(
            lambda: self.server.metric("farrank_tokenizer_hangs_total") > before,
            "no hung tokenizer thread was found",
        )
        await self._well("tokenizer thread stuck", at_s, RERANKS, not_before_s=time.monotonic())

    async def fill_disk(self) -> None:
        """Make all file writes of the server and the search process fail for a while, including the log."""
        processes = [self.server.process.pid, await self._searching()]
        at_s = time.monotonic()
        _, most = resource.prlimit(processes[0], resource.RLIMIT_FSIZE)
        for each in processes:
            resource.prlimit(each, resource.RLIMIT_FSIZE, (0, most))
        try:
            await self._reload()
            await self._well("disk full, indexes reloaded", at_s, (*RERANKS, *SEARCHES))
        finally:
            for each in (self.server.process.pid, *self.server.search_processes()):
                resource.prlimit(each, resource.RLIMIT_FSIZE, (most, most))

    async def replace_index(self) -> None:
        """Replace the index by another folder, as a deployment does, and reload."""
        await self._searching()
        index, other = self.server.index, self.server.index.with_name("other")
        spare = index.with_name("spare")
        index.rename(spare)
        other.rename(index)
        spare.rename(other)
        at_s = time.monotonic()
        await self._reload()
        await self._well("index replaced, reloaded", at_s, SEARCHES)

    async def _reload(self) -> None:
        """Reload the indexes, and wait until the old ones are closed."""
        before = self.server.metric("farrank_index_reloads_total", outcome="done")
        os.kill(self.server.process.pid, signal.SIGHUP)
        await self._until(
            lambda: self.server.metric("farrank_index_reloads_total", outcome="done") > before, "no reload"
        )
        await self._searching()

    async def _strike(self, words: str) -> float:
        """Order a failure. Returns when it happened."""
        before = len(self.server.struck)
        self.server.order(words)
        await self._until(
            lambda: len(self.server.struck) > before, f"{words}: nothing came along to be struck"
        )
        return self.server.struck[-1][1]

    async def _searching(self) -> int:
        """Return the search process, once one answers."""
        await self._until(lambda: self.server.metric("farrank_search_process_down") == 0, "no search process")
        await self._until(lambda: len(self.server.search_processes()) == 1, "not one search process")
        return self.server.search_processes()[0]

    async def _well(
        self, name: str, at_s: float, kinds: Sequence[str], not_before_s: float | None = None
    ) -> None:
        """Wait for an answer to a later call, then until no affected call is in flight."""
        began_s = at_s if not_before_s is None else not_before_s
        await self._until(
            lambda: self.load.first_ok_since(began_s, kinds) is not None, f"{name}: not well again"
        )
        first = self.load.first_ok_since(began_s, kinds)
        assert first is not None
        self.history.append(Struck(name, at_s, first.ended_s))
        await self._until(lambda: self.load.oldest_began_s > first.ended_s, f"{name}: calls that never end")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        ends_s = time.monotonic() + WELL_AFTER_S
        while not await asyncio.to_thread(holds):
            problem = (
                f"{what} within {WELL_AFTER_S} s; the log ends with {self.server.log.read_text()[-2000:]}"
            )
            assert time.monotonic() < ends_s, problem
            await asyncio.sleep(0.02)
