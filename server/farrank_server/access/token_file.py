"""A token in a file, which the operator's own programs send."""

import hashlib
import hmac
from contextlib import suppress
from pathlib import Path

from farrank_settings.errors import ConfigError

METRICS_KEY = "listen.metrics_token_file"

MAX_CHARACTERS = 4096

# A shorter token could be guessed.
MIN_CHARACTERS = 16


def read_token(path: Path, key: str = METRICS_KEY) -> str:
    """Read a token: the only word in its file.

    Raises: ConfigError naming the configuration `key` and the file, but not the file's content.
    """
    try:
        with path.open(encoding="ascii") as file:
            words = file.read(MAX_CHARACTERS + 1).split()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"{key}: {path} cannot be read: {why}") from None
    if len(words) != 1 or not MIN_CHARACTERS <= len(words[0]) <= MAX_CHARACTERS:
        raise ConfigError(
            f"{key}: {path} must hold one word of {MIN_CHARACTERS} to {MAX_CHARACTERS} characters"
        )
    return words[0]


class TokenFile:
    """Checks the token. The file is read on each check; if it cannot be read, the last token stays valid.

    Raises: ConfigError, as `read_token`.
    """

    def __init__(self, path: Path, key: str = METRICS_KEY) -> None:
        self._path, self._key = path, key
        self._token = read_token(path, key)

    def is_shown_by(self, authorization: str | None) -> bool:
        """Whether a header `authorization: Bearer TOKEN` has the token."""
        # An unreadable file is mostly one that is being replaced; a wrong one was reported at the start.
        with suppress(ConfigError):
            self._token = read_token(self._path, self._key)
        scheme, _, shown = (authorization or "").strip().partition(" ")
        # Digests have one length: the time to compare texts would depend on their length.
        return scheme.lower() == "bearer" and hmac.compare_digest(
            _digest(shown.strip()), _digest(self._token)
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
