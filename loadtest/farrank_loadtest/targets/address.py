"""Where a target is and what it speaks, read from one word, and whether it is this machine."""

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from farrank_loadtest.errors import LoadtestError

FORMS = "HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL"
_HTTP_PROTOCOLS = ("tei", "cohere", "jina")


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """A protocol's name, where to find the server (`host:port` for gRPC, else a URL), and its host."""

    protocol: str
    location: str
    host: str

    @property
    def is_loopback(self) -> bool:
        """Whether no call leaves this machine. A name other than localhost could point anywhere."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(address: str) -> TargetAddress:
    """Read a target's address.

    Raises: LoadtestError saying what is wrong with it and which forms there are.
    """
    protocol, _, rest = address.partition(":")
    if protocol in _HTTP_PROTOCOLS:
        return TargetAddress(protocol, rest, _http_host(address, rest))
    location = rest if protocol == "farrank" else address
    split = _split(address, f"//{location}")
    if not split.hostname or split.port is None or split.netloc != location or split.username is not None:
        raise LoadtestError(f"target {address!r}: must be {FORMS}")
    return TargetAddress("farrank", location, split.hostname)


def _http_host(address: str, url: str) -> str:
    split = _split(address, url)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise LoadtestError(f"target {address!r}: {url!r} must be a URL that begins with http:// or https://")
    return split.hostname


def _split(address: str, url: str) -> SplitResult:
    try:
        split = urlsplit(url)
        _ = split.port  # Only reading it checks it.
    except ValueError as error:
        raise LoadtestError(f"target {address!r}: {error}; it must be {FORMS}") from error
    return split
