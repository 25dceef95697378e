"""The digest by which a manifest.json, which has the checksums of all other files, shows its own changes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from farrank_rankers.errors import ExportError

DIGEST = "digest"

_ANEW = "farrank export --force makes it anew"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give a JSON object with the SHA-256 of its other keys, however they are ordered and laid out."""
    others = {key: value for key, value in values.items() if key != DIGEST}
    canonical = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return others | {DIGEST: hashlib.sha256(canonical.encode()).hexdigest()}


def check_sealed(values: Mapping[str, Any]) -> None:
    """Hold a JSON object to its digest.

    Raises: ExportError if it has none, or was changed since it was written.
    """
    if DIGEST not in values:
        raise ExportError(f"the manifest lacks the key {DIGEST}; {_ANEW}")
    found, expected = values[DIGEST], sealed(values)[DIGEST]
    if found != expected:
        raise ExportError(
            f"it was changed since it was written: {DIGEST} is {found!r}, and {expected} is that of its "
            f"other keys; {_ANEW}"
        )
