"""A token in a file, for what a program of the operator's own asks: the metrics."""

import hashlib
import hmac
from contextlib import suppress
from pathlib import Path

from farrank_server.errors import ConfigError

MOST_CHARACTERS = 4096

# Shorter ones can be guessed.
LEAST_CHARACTERS = 16


def read_token(path: Path) -> str:
    """Read a token: one word, which stands in a file alone.

    Raises: ConfigError naming the key and the file, without what it holds.
    """
    try:
        with path.open(encoding="ascii") as file:
            words = file.read(MOST_CHARACTERS + 1).split()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"listen.metrics_token_file: {path} cannot be read: {why}") from None
    if len(words) != 1 or not LEAST_CHARACTERS <= len(words[0]) <= MOST_CHARACTERS:
        raise ConfigError(
            f"listen.metrics_token_file: {path} must hold one word of {LEAST_CHARACTERS} to "
            f"{MOST_CHARACTERS} characters"
        )
    return words[0]


class TokenFile:
    """Knows who shows the token. It is read anew each time; what cannot be read leaves it as it was.

    Raises: ConfigError, as `read_token`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = read_token(path)

    def is_shown_by(self, authorization: str | None) -> bool:
        """Whether a header, `authorization: Bearer TOKEN`, shows it."""
        # What cannot be read is a file that is being replaced, mostly; at the start it would have been told.
        with suppress(ConfigError):
            self._token = read_token(self._path)
        scheme, _, shown = (authorization or "").strip().partition(" ")
        # As digests: a comparison of texts would take longer for longer ones.
        return scheme.lower() == "bearer" and hmac.compare_digest(
            _digest(shown.strip()), _digest(self._token)
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
