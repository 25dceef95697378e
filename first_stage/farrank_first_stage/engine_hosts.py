"""The hosts of a search engine in turn, without those that failed a moment ago."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# The first failure of a host is often a restart. A host that goes on failing is tried less and less often.
FIRST_AVOIDED_S = 2.0
LONGEST_AVOIDED_S = 32.0


@dataclass(slots=True)
class Host:
    """One host: its address, for how long it is avoided (0 s after an answer), and until when."""

    url: str
    avoided_s: float = 0.0
    avoided_until: float = 0.0


class Hosts:
    """Chooses a host for every request: in turn, and in another order in each process.

    A host that fails is avoided for 2 s. Then one request tries it; the others avoid it for twice that time,
    or until it answers. If all hosts are avoided, they take turns: there is always a host.
    """

    def __init__(self, urls: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        # The host that has been without a request for the longest time comes first.
        self._hosts = [Host(url) for url in random.sample(urls, len(urls))]
        self._now = now

    def choose(self) -> Host:
        """Choose the host of the next request. Call `answered` or `failed` with it if the request ends so."""
        now = self._now()
        host = next((each for each in self._hosts if each.avoided_until <= now), None)
        if host is None:
            host = self._hosts[0]
        elif host.avoided_s:
            self._avoid(host)
        self._hosts.remove(host)
        self._hosts.append(host)
        return host

    def answered(self, host: Host) -> None:
        """Give the host requests again."""
        host.avoided_s = 0.0
        host.avoided_until = 0.0

    def failed(self, host: Host) -> None:
        """Avoid the host. Requests that fail at the same time count as one failure."""
        if not host.avoided_s:
            self._avoid(host)

    def _avoid(self, host: Host) -> None:
        host.avoided_s = min(2 * host.avoided_s or FIRST_AVOIDED_S, LONGEST_AVOIDED_S)
        host.avoided_until = self._now() + host.avoided_s
