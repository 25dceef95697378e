"""Targets by their addresses.

`host:port` is Farrank over gRPC; `tei:`, `cohere:` and `jina:` precede a URL. Load goes only to this machine
unless the caller allows others.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from farrank_loadtest.depths import Depth
from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets import Target

FORMS = "HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL"
PRIORITIES = ("interactive", "batch")
_HTTP_PROTOCOLS = ("tei", "cohere", "jina")


def is_loopback(host: str) -> bool:
    """Whether calls to the host stay on this machine. A name other than localhost could point anywhere."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(address: str) -> tuple[str, str, str]:
    """Read a target's protocol, location (`host:port` for gRPC, else a URL), and host.

    Raises: LoadtestError naming the problem and the allowed forms.
    """
    protocol, _, rest = address.partition(":")
    http = protocol in _HTTP_PROTOCOLS
    location = rest if http or protocol == "farrank" else address
    try:
        split = urlsplit(location if http else f"//{location}")
        port = split.port  # reading it checks it
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
    address: str,
    *,
    allow_remote: bool = False,
    api_key: str | None = None,
    priority: str | None = None,
    depth: Depth | None = None,
) -> Target:
    """Open a target in the event loop that will call it; nothing is sent yet.

    `address` is `host:port` or `farrank:host:port` for gRPC, else `tei:`, `cohere:` or `jina:` and a URL: of
    the server, or of the route itself if its path ends in `/rerank`. `api_key` is sent with every call;
    `priority` is that of all calls, one of PRIORITIES, and `depth` theirs; None leaves both to the server.
    Raises: LoadtestError if the address is wrong, or not of this machine without `allow_remote`, or its
        protocol has neither priorities nor depths.
    """
    protocol, location, host = parse_address(address)
    if not (is_loopback(host) or allow_remote):
        raise LoadtestError(
            f"target {address!r}: {host} is not this machine's loopback; sending load there needs "
            "--allow-remote and the permission of its operator"
        )
    # Imported here, so that each protocol needs only its own packages.
    if protocol == "farrank":
        from farrank_loadtest.targets.grpc import FarrankTarget

        return FarrankTarget(location, api_key, priority, depth)
    for name, value in (("priority", priority), ("depth", depth)):
        if value is not None:
            raise LoadtestError(f"target {address!r}: only Farrank over gRPC takes a --{name}")
    from farrank_loadtest.targets.http import HttpTarget

    return HttpTarget(protocol, location, api_key)


async def not_adaptive(
    address: str, rankers: Iterable[str], timeout_s: float, allow_remote: bool, api_key: str | None
) -> set[str]:
    """Ask a Farrank server which of the rankers cannot be adaptive; each is asked in a call of one word.

    Raises: LoadtestError as `open_target`; TargetFailed if there is no such ranker, or the call fails.
    """
    target = open_target(address, allow_remote=allow_remote, api_key=api_key, depth="adaptive")
    from farrank_loadtest.targets.grpc import FarrankTarget

    assert isinstance(target, FarrankTarget), "another target takes no depth"
    try:
        return {each for each in rankers if not await target.can_be_adaptive(each, timeout_s)}
    finally:
        await target.close()
