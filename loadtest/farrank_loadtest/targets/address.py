"""Targets by their addresses.

`host:port` is Farrank over gRPC; `tei:`, `cohere:` and `jina:` stand before a URL. Load goes to this machine
alone unless the caller says otherwise.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets import Target

FORMS = "HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL"
PRIORITIES = ("interactive", "batch")
_HTTP_PROTOCOLS = ("tei", "cohere", "jina")


def is_loopback(host: str) -> bool:
    """Whether no call to the host leaves this machine. A name other than localhost could point anywhere."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(address: str) -> tuple[str, str, str]:
    """Read a target's protocol, where to find the server (`host:port` for gRPC, else a URL), and its host.

    Raises: LoadtestError saying what is wrong with it and which forms there are.
    """
    protocol, _, rest = address.partition(":")
    http = protocol in _HTTP_PROTOCOLS
    location = rest if http or protocol == "farrank" else address
    try:
        split = urlsplit(location if http else f"//{location}")
        port = split.port  # Only reading it checks it.
    except ValueError as error:
        raise LoadtestError(f"target {address!r}: {error}; it must be {FORMS}") from error
    host = split.hostname
    if http and (split.scheme not in ("http", "https") or not host):
        raise LoadtestError(
            f"target {address!r}: {rest!r} must be a URL that begins with http:// or https://"
        )
    if not host or (not http and (port is None or split.netloc != location or split.username is not None)):
        raise LoadtestError(f"target {address!r}: must be {FORMS}")
    return protocol if http else "farrank", location, host


def open_target(
    address: str, *, allow_remote: bool = False, api_key: str | None = None, priority: str | None = None
) -> Target:
    """Open a target, from the event loop that will ask it: nothing is sent yet.

    `address` is `host:port` or `farrank:host:port` for gRPC, else `tei:`, `cohere:` or `jina:` and a URL: of
    the server, or of the very route where its path ends in `/rerank`. `api_key` is shown with every call;
    `priority` is that of all calls, one of PRIORITIES.
    Raises: LoadtestError if the address is wrong, or leaves this machine without `allow_remote`, or its
        protocol knows no priority.
    """
    protocol, location, host = parse_address(address)
    if not (is_loopback(host) or allow_remote):
        raise LoadtestError(
            f"target {address!r}: {host} is not this machine's loopback; load is sent there only "
            "with --allow-remote, and only with the leave of whoever runs it"
        )
    # Imported here, so that each protocol needs its own packages alone.
    if protocol == "farrank":
        from farrank_loadtest.targets.grpc import FarrankTarget

        return FarrankTarget(location, api_key, priority)
    if priority is not None:
        raise LoadtestError(f"target {address!r}: only Farrank over gRPC is asked with a --priority")
    from farrank_loadtest.targets.http import HttpTarget

    return HttpTarget(protocol, location, api_key)
