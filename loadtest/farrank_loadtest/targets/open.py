"""Open a target by its address."""

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets import cohere, jina, tei
from farrank_loadtest.targets.address import TargetAddress, parse_address
from farrank_loadtest.targets.farrank import FarrankTarget
from farrank_loadtest.targets.http import HttpTarget
from farrank_loadtest.targets.interface import Target

_DIALECTS = {"tei": tei.dialect, "cohere": cohere.dialect, "jina": jina.dialect}


def open_target(address: str, *, allow_remote: bool = False) -> Target:
    """Open a target, from the event loop that will ask it: nothing is sent yet.

    `address` is `host:port` or `farrank:host:port` for gRPC, else `tei:`, `cohere:` or `jina:` and a URL: of
    the server, or of the very route where its path ends in `/rerank`.
    Raises: LoadtestError if the address is wrong, or leaves this machine without `allow_remote`.
    """
    parsed = permitted_address(address, allow_remote=allow_remote)
    if parsed.protocol == "farrank":
        return FarrankTarget(parsed.location)
    return HttpTarget(_DIALECTS[parsed.protocol](parsed.location))


def permitted_address(address: str, *, allow_remote: bool) -> TargetAddress:
    """Read a target's address, if it may be asked.

    Raises: LoadtestError as `open_target`.
    """
    parsed = parse_address(address)
    if not (parsed.is_loopback or allow_remote):
        raise LoadtestError(
            f"target {address!r}: {parsed.host} is not this machine's loopback; load is sent there only "
            "with --allow-remote, and only with the leave of whoever runs it"
        )
    return parsed
