"""Answers compressed with gzip, for callers that accept it."""

import gzip
import re

# The level at which answers are compressed as they are made: the fastest.
FAST = 1

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


def packed(body: bytes, level: int = FAST) -> bytes:
    """Compress a body; the same body always has the same result."""
    return gzip.compress(body, level, mtime=0)
