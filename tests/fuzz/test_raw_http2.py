"""Both endpoints under frames that no client library sends, while another caller goes on undisturbed.

`make test` runs a seeded part and asserts only results that do not depend on the machine's load. `make fuzz`
runs the attacks at their full size and writes the delays of the other caller.
"""

import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from support import hostile_http, hostile_steps
from support.attacked_server import Attacked, attacked_server
from support.health_probe import Probe, Probed, probing
from support.known_attacks import KNOWN, Case, cases

SEED = int(os.environ.get("FARRANK_FUZZ_SEED", "20261125"))
# The number of drawn cases, and the share of a known attack's size that is sent.
CASES = int(os.environ.get("FARRANK_RAW_CASES", "60"))
SHARE = float(os.environ.get("FARRANK_RAW_SHARE", "0.05"))
# Attacks that cost this process little and a server without limits much. They always have their full size.
WHOLE = (
    "streams begun, 60,000",
    "rapid reset, 60,000",
    "rapid reset of checks, 60,000",
    "rapid reset by one that reads, 60,000",
    "PING, 200,000",
)
# The most repetitions of a step of a drawn case.
MAX_TIMES = int(os.environ.get("FARRANK_RAW_TIMES", "200"))
# A case to run again, as a failure printed it.
AGAIN = os.environ.get("FARRANK_RAW_CASE", "")
REPORT = os.environ.get("FARRANK_RAW_REPORT", "")
COMMAND = "python -m pytest tests/fuzz/test_raw_http2.py"

# An attacker's own requests, some of which are valid, cost memory, too.
MAX_GROWTH_BYTES = 512 * 2**20
# Processor time of the event loop's thread, which does not depend on the machine's load. `make test`'s
# attacks take at most 0.4 s; 60,000 streams take 4 to 9 s if a connection may have any number. The second
# value bounds each call of the other caller.
MAX_LOOP_S = 3.0
MAX_LOOP_OF_A_PROBE_S = 0.005
# People read the log of a server under attack.
MAX_LOG_BYTES = 2**20
# The server's own connections, and files that it opens now and then.
SLACK_FILES = 8
# Cancelled calls must be gone by then, also on a busy machine.
GONE_S = 90.0
# In a long run, a known attack keeps its connections while the other caller goes on.
STAYS_S = 2.0 if REPORT else 0.0
# Cases that would begin later than this are not run.
DRAWN_S = 1_800.0

AIM_MS = 300


class Target:
    """The server, restarted after a failure, and the other caller."""

    def __init__(self, ranker: Path, folder: Path) -> None:
        self._ranker, self._folder = ranker, folder
        self._started = 0
        self._stack = ExitStack()
        self.rows: list[str] = []
        self.start()

    def start(self) -> None:
        """Start a server and its probe, in place of existing ones."""
        self._stack.close()
        folder = self._folder / str(self._started)
        self._started += 1
        self.server: Attacked = self._stack.enter_context(attacked_server(self._ranker, folder))
        ports, key = self.server.ports, self.server.probe_key
        self.probe: Probe = self._stack.enter_context(probing(ports["grpc"], key, folder / "probe"))
        self._files = self.server.files()
        self._connections = self.server.connections()
        self._memory = self.server.resident_bytes()
        self._cases = 0

    def close(self) -> None:
        self._stack.close()

    def attack(self, case: Case, *, with_key: bool, stays_s: float = 0.0) -> list[Probed]:
        """Run a case, check the server, and return the other caller's calls in the meantime."""
        try:
            return self._attack(case, with_key, stays_s)
        except AssertionError as error:
            error.add_note(f"seed {SEED}; again: FARRANK_RAW_CASE='{case!r}' {COMMAND}")
            # The next case gets a fresh server.
            self.start()
            raise

    def _attack(self, case: Case, with_key: bool, stays_s: float) -> list[Probed]:
        server = self.server
        loop_s, began_s = server.loop_s(), time.monotonic()
        server.forget_peak()
        attacker = server.attacker(self._cases, with_key=with_key)
        self._cases += 1
        try:
            for step in case:
                # A server may refuse a connection. That it runs is checked below.
                try:
                    step.run(attacker)
                except OSError:
                    attacker.close()
            time.sleep(stays_s)
        finally:
            attacker.close()
        assert server.is_alive(), "the server ended"
        self._wait_for_probes()
        probed = [each for each in self.probe.calls() if each.ended_s >= began_s]
        refused = [each for each in probed if each.status != "OK"]
        assert not refused, (
            f"another caller was refused {len(refused)} of {len(probed)} calls, one with {refused[0].status}"
        )
        spent_s = server.loop_s() - loop_s - MAX_LOOP_OF_A_PROBE_S * len(probed)
        assert spent_s < MAX_LOOP_S, f"the event loop: {spent_s:.1f} s of processor time"
        grown, written = server.peak_bytes() - self._memory, server.log.stat().st_size
        assert grown < MAX_GROWTH_BYTES, f"memory: {grown >> 20} MiB more than at the start"
        assert written < MAX_LOG_BYTES, f"the log has {written} bytes"
        self._wait_until_gone()
        return probed

    def _wait_for_probes(self) -> None:
        """Wait for answers to a check and a rerank that begin after now."""
        probes = len(self.probe.calls())
        now_s, until_s = time.monotonic(), time.monotonic() + GONE_S
        while True:
            later = self.probe.calls()[probes:]
            if {"check", "rerank"} <= {
                each.kind for each in later if each.ended_s - each.delay_ms / 1000 >= now_s
            }:
                return
            assert time.monotonic() < until_s, "another caller is not answered any more"
            time.sleep(0.01)

    def _wait_until_gone(self) -> None:
        """Wait until nothing of the attacker is left: connections, files, calls."""
        server, until_s = self.server, time.monotonic() + GONE_S
        while True:
            left = {
                "connections": server.connections() - self._connections,
                "files": server.files() - self._files - SLACK_FILES,
            }
            if max(left.values()) <= 0:
                return
            assert time.monotonic() < until_s, f"left of the attacker: {left}"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def target(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tiny_rankers["maxp"], tmp_path_factory.mktemp("raw"))
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(AGAIN), reason="another case is run again")
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_attack_disturbs_no_other_caller(target: Target, name: str) -> None:
    loop_s, wall_s = target.server.loop_s(), time.monotonic()
    share = 1.0 if name in WHOLE else SHARE
    try:
        probed = target.attack(KNOWN[name](share), with_key=not name.startswith("HTTP"), stays_s=STAYS_S)
    except AssertionError as error:
        _write_row(
            target,
            f"| {name} | {time.monotonic() - wall_s:.1f} | failed: {str(error).splitlines()[0]} |||||| no |",
        )
        raise
    _report(target, name, probed, target.server.loop_s() - loop_s, time.monotonic() - wall_s)


@pytest.mark.timeout(3_600)
@pytest.mark.skipif(bool(AGAIN), reason="another case is run again")
def test_no_sequence_of_frames_disturbs_another_caller(target: Target) -> None:
    delays: list[Probed] = []
    run = 0
    loop_s, wall_s = target.server.loop_s(), time.monotonic()

    # When Hypothesis fails, it prints the minimal case.
    @seed(SEED)
    @settings(
        max_examples=CASES,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(MAX_TIMES))
    def hold(case: Case) -> None:
        nonlocal run
        if time.monotonic() - wall_s > DRAWN_S:
            return
        run += 1
        delays.extend(target.attack(case, with_key=len(case) % 2 == 0))

    hold()
    name = f"drawn cases, {run}"
    _report(target, name, delays, target.server.loop_s() - loop_s, time.monotonic() - wall_s)


@pytest.mark.skipif(not AGAIN, reason="FARRANK_RAW_CASE holds no case")
def test_a_case_again(target: Target) -> None:
    steps: dict[str, Any] = vars(hostile_steps) | vars(hostile_http)
    case: Case = eval(AGAIN, steps)
    target.attack(case, with_key=len(case) % 2 == 0)


def test_the_server_is_as_it_was(target: Target) -> None:
    """After all attacks no call is in flight, no answer is unread, and the log has no traceback."""
    server = target.server
    until_s = time.monotonic() + GONE_S
    calls = target.probe.end()
    assert {each.status for each in calls} == {"OK"}
    while server.metric("farrank_unread_answer_bytes") or server.metric("farrank_requests_in_flight"):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[-3_000:]


def _report(target: Target, name: str, probed: list[Probed], loop_s: float, wall_s: float) -> None:
    """In a long run, write the other caller's delays."""
    if not REPORT:
        return
    checks, reranks = (sorted(e.delay_ms for e in probed if e.kind == kind) for kind in ("check", "rerank"))
    middle = checks[len(checks) // 2] if checks else math.nan
    grown = target.server.peak_bytes() - target._memory
    worst = max(checks, default=math.nan)
    slowest = max(reranks, default=math.nan)
    within = "yes" if worst <= AIM_MS else "no"
    _write_row(
        target,
        f"| {name} | {wall_s:.1f} | {loop_s:.2f} | {len(checks)} | {middle:.0f} | {worst:.0f} "
        f"| {slowest:.0f} | {grown / 2**20:+.0f} | {within} |",
    )


def _write_row(target: Target, row: str) -> None:
    if not REPORT:
        return
    target.rows.append(row)
    head = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, seed {SEED}\n\n"
        "| Attack | s | event loop, s | checks | median, ms | largest, ms | rerank, ms | memory, MiB | "
        f"within {AIM_MS} ms |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    Path(REPORT).write_text(head + "\n".join(target.rows) + "\n")
