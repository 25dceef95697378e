"""Answers compressed with gzip, for callers that accept it."""

import gzip
import re

# Above this size an answer is compressed at the fastest level. Below it, level 4 takes a millisecond more and
# makes answers with chunks' scores a seventh smaller.
_LARGE_BYTES = 1_000_000
_FASTEST, _FAST = 1, 4

_ACCEPTED = re.compile(r"(gzip|x-gzip|\*)(?:[ \t]*;[ \t]*q=([01](?:\.[0-9]{0,3})?))?", re.IGNORECASE)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a caller with this `Accept-Encoding` takes gzip; empty means no header, and then no gzip.

    A weight of 0 forbids it. An entry that is not valid counts as absent.
    Source: RFC 9110, 12.5.3.
    """
    weights: dict[str, float] = {}
    for entry in accept_encoding.split(","):
        if found := _ACCEPTED.fullmatch(entry.strip(" \t")):
            coding, weight = found[1].lower().removeprefix("x-"), found[2]
            weights[coding] = 1.0 if weight is None else float(weight)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def packed(body: bytes, level: int | None = None) -> bytes:
    """Compress a body, by default as fast as its size asks. The same body always has the same result."""
    if level is None:
        level = _FASTEST if len(body) > _LARGE_BYTES else _FAST
    return gzip.compress(body, level, mtime=0)
