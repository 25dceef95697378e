"""The choice of a replica for a call: the one with the least work among a few drawn at random.

Before a call the client checks the health of `PROBES` replicas in parallel. Each answer includes the
replica's backlog in seconds, so one health check shows whether a replica accepts calls and how busy it is.
Answers are reused for `REPORT_S`, and calls that begin during a health check share its answer. Comparison
with other policies, measured and simulated: docs/decisions/0048-replicas-are-chosen-by-their-backlog.md.
"""

import hashlib
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from farrank_client.errors import FarrankError, Unavailable

PROBES = 4

# A report of this age is still valid: calls keep a device busy for longer.
REPORT_S = 0.02

# After the first answer, the others are awaited only for this time.
GRACE_S = 0.025

# A replica that needs longer gets no call, even if no other replica answers.
PROBE_TIMEOUT_S = 1.0

# A replica that refused, or was late LATE_PROBES times in a row, is drawn last for AVOIDED_S.
AVOIDED_S = 1.0
LATE_PROBES = 3

# Trailing metadata of a server's health check: a load report in ORCA's text form.
LOAD_KEY = "endpoint-load-metrics"
_BACKLOG = re.compile(r"\bnamed_metrics\.backlog_s=(\d+(?:\.\d+)?)(?:[,\s]|$)")

Wire = TypeVar("Wire")


def read_backlog_s(metadata: Iterable[Any] | None) -> float:
    """Read the backlog from a health check's trailing metadata; 0 if the server sent none."""
    for key, value in metadata or ():
        if key == LOAD_KEY and isinstance(value, str) and (found := _BACKLOG.search(value)):
            return float(found[1])
    return 0.0


@dataclass(eq=False, slots=True)
class Probe:
    """A health check in flight, shared by all calls that wait for it; `future` is gRPC's or a task.

    `begun` is the number of calls that the client had begun at the replica when the probe was sent. `error`
    is set when the future is done, if the replica accepts no calls.
    """

    asked_s: float
    begun: int
    future: Any = None
    error: FarrankError | None = None
    is_late: bool = False


@dataclass(eq=False, slots=True)
class Backend(Generic[Wire]):
    """One server: its connection, its last report, and the calls that this client began there.

    `begun_at_report` is the value of `begun` when the report was requested. `probe` is the one in flight.
    """

    address: str
    wire: Wire
    asked_s: float = float("-inf")
    backlog_s: float = 0.0
    begun: int = 0
    begun_at_report: int = 0
    in_flight: int = 0
    late: int = 0
    avoided_until_s: float = float("-inf")
    is_gone: bool = False
    probe: Probe | None = None


class Replicas(Generic[Wire]):
    """The replicas of one client, safe to share between threads; nothing here touches the network.

    `connect` opens a connection to an address. With `most`, a client uses at most that many of the addresses:
    each client draws them at random, and keeps them while they exist.
    """

    def __init__(
        self,
        connect: Callable[[str], Wire],
        most: int | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._connect = connect
        self._most = most
        self._clock_s = clock_s
        self._chance = chance or random.Random()
        self._salt = self._chance.randbytes(8)
        self._lock = threading.Lock()
        self._addresses: tuple[str, ...] = ()
        self._by_address: dict[str, Backend[Wire]] = {}

    def update(self, addresses: Sequence[str]) -> list[Wire]:
        """Use these addresses from now on; returns connections to close, which have no calls in flight."""
        with self._lock:
            if tuple(addresses) == self._addresses:
                return []
            self._addresses = tuple(addresses)
            kept = sorted(set(addresses), key=self._rank)[: self._most]
            gone = [each for address, each in self._by_address.items() if address not in kept]
            for each in gone:
                each.is_gone = True
                del self._by_address[each.address]
            for address in kept:
                if address not in self._by_address:
                    self._by_address[address] = Backend(address, self._connect(address))
            return [each.wire for each in gone if not each.in_flight]

    def _rank(self, address: str) -> bytes:
        return hashlib.blake2b(address.encode(), key=self._salt, digest_size=8).digest()

    def only(self) -> Backend[Wire] | None:
        """Return the replica if there is only one; it needs no health check before a call."""
        with self._lock:
            return next(iter(self._by_address.values())) if len(self._by_address) == 1 else None

    def draw(self, tried: Collection[Backend[Wire]]) -> list[Backend[Wire]]:
        """Draw replicas to choose from: `PROBES` at first, then all others if none of these was healthy."""
        with self._lock:
            left = [each for each in self._by_address.values() if each not in tried]
            if tried:
                return left
            now_s = self._clock_s()
            self._chance.shuffle(left)
            left.sort(key=lambda each: each.avoided_until_s > now_s)
            return left[:PROBES]

    def is_known(self, replica: Backend[Wire]) -> bool:
        """Whether the replica's last report is recent enough."""
        return self._clock_s() - replica.asked_s <= REPORT_S

    def asks(self, replica: Backend[Wire]) -> Probe:
        """Begin a probe of a replica."""
        return Probe(self._clock_s(), replica.begun)

    def heard(self, replica: Backend[Wire], probe: Probe, backlog_s: float) -> None:
        """Record the answer of a healthy replica."""
        with self._lock:
            if not probe.is_late:
                replica.late = 0
            replica.avoided_until_s = float("-inf")
            replica.asked_s, replica.begun_at_report = probe.asked_s, probe.begun
            replica.backlog_s = backlog_s

    def refused(self, replica: Backend[Wire], probe: Probe, error: FarrankError) -> None:
        """Draw a replica last for a while: it is not healthy, or cannot be reached."""
        probe.error = error
        replica.avoided_until_s = self._clock_s() + AVOIDED_S

    def was_late(self, replica: Backend[Wire], probe: Probe) -> None:
        """Count a late answer, once for all calls that waited for it."""
        with self._lock:
            if probe.is_late:
                return
            probe.is_late = True
            replica.late += 1
            if replica.late >= LATE_PROBES:
                replica.avoided_until_s = self._clock_s() + AVOIDED_S

    def begin(self, healthy: Sequence[Backend[Wire]]) -> Backend[Wire]:
        """Choose the replica with the least work, and count the call as begun there.

        A report does not include calls that this client began after it, so replicas with the fewest of these
        come first.
        """
        with self._lock:
            chosen = min(
                healthy,
                key=lambda each: (each.begun - each.begun_at_report, each.backlog_s, self._chance.random()),
            )
            chosen.begun += 1
            chosen.in_flight += 1
            return chosen

    def end(self, replica: Backend[Wire]) -> Wire | None:
        """Count a call as ended; returns the connection of a removed replica after its last call."""
        with self._lock:
            replica.in_flight -= 1
            return replica.wire if replica.is_gone and not replica.in_flight else None

    def all(self) -> list[Backend[Wire]]:
        """The current replicas."""
        with self._lock:
            return list(self._by_address.values())


class Round(Generic[Wire]):
    """The probes that one call waits for: the replicas to ask, the healthy ones, and the time to wait."""

    def __init__(
        self, replicas: Replicas[Wire], drawn: Sequence[Backend[Wire]], until_s: float, now_s: float
    ) -> None:
        self._replicas = replicas
        self.healthy = [each for each in drawn if replicas.is_known(each)]
        self.to_ask = [each for each in drawn if each not in self.healthy]
        wait_s = GRACE_S if self.healthy else PROBE_TIMEOUT_S
        self.until_s = min(until_s, now_s + wait_s)
        self.error: tuple[str, FarrankError] | None = None

    def answered(self, replica: Backend[Wire], probe: Probe, now_s: float) -> None:
        """Record an answer; if the replica is healthy, the others are awaited only a little longer."""
        if probe.error is not None:
            self.error = (replica.address, probe.error)
            return
        if not self.healthy:
            self.until_s = min(self.until_s, now_s + GRACE_S)
        self.healthy.append(replica)

    def left(self, waiting: Iterable[tuple[Backend[Wire], Probe]]) -> None:
        """Record the replicas that have not answered in time."""
        for replica, probe in waiting:
            self._replicas.was_late(replica, probe)
            if not self.healthy:
                late = Unavailable("it did not answer a health check in time")
                late.reached_server = False
                self.error = (replica.address, late)


def none_healthy(count: int, last: tuple[str, FarrankError] | None) -> Unavailable:
    """Make the error that no replica accepts calls, with the reason of the last one asked."""
    if last is None:
        error = Unavailable("there is no replica")
        error.reached_server = False
        return error
    address, reason = last
    error = Unavailable(f"none of {count} replicas accepts calls; the last one, {address}: {reason.message}")
    error.reached_server = reason.reached_server
    return error
