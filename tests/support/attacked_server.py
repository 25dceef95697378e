"""A real server under attack: API keys, both endpoints, its log, and figures of its process from /proc."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from farrank_calls.key_file import add_key
from farrank_cli.spawn import SpawnedServer, spawned_server
from support.hostile_connection import GRPC, HTTP, Attacker

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Attacked:
    """The server, the API keys of the attacker and of the probe, and the path of its log."""

    spawned: SpawnedServer
    log: Path
    attacker_key: str = field(repr=False)
    probe_key: str = field(repr=False)

    @property
    def ports(self) -> dict[str, int]:
        grpc_port = int(self.spawned.address.rpartition(":")[2])
        return {GRPC: grpc_port, HTTP: urlsplit(self.spawned.http_url).port or 0}

    def attacker(self, number: int, *, with_key: bool) -> Attacker:
        """Return a caller whose loopback address is not the probe's."""
        return Attacker(self.ports, f"127.0.0.{2 + number % 200}", self.attacker_key if with_key else "")

    def is_alive(self) -> bool:
        return self.spawned.process.poll() is None

    def _proc(self, name: str) -> Path:
        return Path(f"/proc/{self.spawned.process.pid}/{name}")

    def _status_bytes(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB", self._proc("status").read_text(), re.MULTILINE)
        assert found is not None, name
        return int(found[1]) * 1024

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def forget_peak(self) -> None:
        """Reset `peak_bytes` to the memory that is resident now."""
        self._proc("clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """Return the most memory that has been resident since `forget_peak`."""
        return self._status_bytes("VmHWM")

    def files(self) -> int:
        """Return the number of open file descriptors."""
        return len(os.listdir(self._proc("fd")))

    def connections(self) -> int:
        """Count the server's connected sockets of both endpoints."""
        ports = set(self.ports.values())
        found = 0
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                # 01 is ESTABLISHED, 08 CLOSE_WAIT.
                found += state in ("01", "08") and int(local.rpartition(":")[2], 16) in ports
        return found

    def loop_s(self) -> float:
        """Return the processor time of the event loop's thread, which is the process's first."""
        pid = self.spawned.process.pid
        fields = self._proc(f"task/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S

    def metric(self, name: str) -> float:
        """Sum a metric over its labels."""
        with urlopen(self.spawned.metrics_url, timeout=60) as answer:
            text = answer.read().decode()
        return sum(map(float, re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)))


@contextmanager
def attacked_server(ranker: Path, folder: Path, settings: Sequence[str] = ()) -> Iterator[Attacked]:
    """Serve a tiny ranker with two API keys. Standard error goes to a file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    keys, log = folder / "keys.toml", folder / "log"
    attacker_key, probe_key = (add_key(keys, name, {}) for name in ("attacker", "probe"))
    arguments = [f"--ranker=tiny={ranker}", f"--keys={keys}", "--http-port=0", "--log-level=warning"]
    arguments += [f"--set={each}" for each in settings]
    with log.open("ab") as file, spawned_server(arguments, file) as spawned:
        yield Attacked(spawned, log, attacker_key, probe_key)
