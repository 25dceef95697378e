"""Identifies callers by the keys of the file, and reloads the keys when the file changes."""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from farrank_calls.errors import FarrankError, Unauthenticated, redacted
from farrank_calls.key_file import KeyConfig, digest_of, read_keys
from farrank_server.access.callers import ANYONE, Entry, KeyHolder
from farrank_server.access.rates import Bucket
from farrank_server.certificates import state_of
from farrank_server.metrics import Metrics
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# Reads a header of a call, or gRPC metadata, by its name in lower case; returns None if there is none.
Header = Callable[[str], str | None]

# Interval at which the file is checked for a change. SIGHUP reloads it at once.
WATCH_S = 2.0

# Only this many characters of a sent key are hashed; every real key is shorter.
_MAX_SHOWN = 1000


class Keys:
    """The keys of a file. `enter` is called for each call. Belongs to the event loop.

    `held` has the names of the loaded `rankers` and `indexes`: the log warns of other names that a key lists.
    `now_s` is Unix time, `clock_s` a clock that never goes back. Raises: ConfigError, as `read_keys`.
    """

    def __init__(
        self,
        path: Path,
        metrics: Metrics,
        held: Mapping[str, Collection[str]] = MappingProxyType({}),
        *,
        now_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._metrics, self._held = path, metrics, held
        self._now_s, self._clock_s = now_s, clock_s
        self._secret = secrets.token_bytes(32)
        self._holders: dict[bytes, KeyHolder] = {}
        self._seen = state_of(path)
        self._replace(read_keys(path))
        # A read that began earlier must not replace the keys of a later one.
        self._reloading = asyncio.Lock()

    def enter(self, header: Header) -> Entry:
        """Identify the caller, and count the call against the key's rate."""
        entry = self.identify(header)
        if entry.refusal is not None:
            return entry
        try:
            entry.caller.begin()
        except FarrankError as error:
            return Entry(entry.caller, error.with_traceback(None))
        return entry

    def identify(self, header: Header) -> Entry:
        """Identify the caller without counting a call."""
        key = _shown_key(header)
        if not key:
            message = "an API key is required; send it as x-api-key: KEY or authorization: Bearer KEY"
            return Entry(ANYONE, Unauthenticated(message, "missing"))
        digest = digest_of(key[:_MAX_SHOWN])
        holder = self._holders.get(self._place(digest))
        if holder is None or not hmac.compare_digest(holder.key.digest, digest):
            return Entry(ANYONE, Unauthenticated("the API key is unknown or was revoked", "unknown"))
        if holder.ends_at_s is not None and self._now_s() >= holder.ends_at_s:
            message = f"key {holder.name}: expired at {holder.key.expires}"
            return Entry(holder, Unauthenticated(message, "expired"))
        return Entry(holder)

    async def reload(self) -> None:
        """Read the file again, on a thread. Calls in flight keep the rights with which they began.

        Raises: ConfigError; the keys then stay unchanged.
        """
        async with self._reloading:
            # A file that changes while it is read differs from this state, so `watch` reads it again.
            self._seen = await asyncio.to_thread(state_of, self._path)
            try:
                keys = await asyncio.to_thread(read_keys, self._path)
            except ConfigError as error:
                self._metrics.key_reloads.labels("failed").inc()
                log.error("the API keys were not reloaded: %s", "; ".join(error.problems))
                raise
            self._replace(keys)
        self._metrics.key_reloads.labels("done").inc()
        log.info("reloaded the API keys; there are %d", len(keys))

    async def watch(self) -> NoReturn:
        """Reload when the file changes, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            # On a thread, since a disk may be slow.
            if await asyncio.to_thread(state_of, self._path) != self._seen:
                try:
                    await self.reload()
                except ConfigError:
                    # `reload` has logged and counted it.
                    pass
                except Exception as error:
                    # The watch must continue: without it no key could be revoked any more.
                    self._metrics.key_reloads.labels("failed").inc()
                    log.error("the API keys were not reloaded: %s", redacted(error))

    def _replace(self, keys: Mapping[str, KeyConfig]) -> None:
        old = {each.name: each for each in self._holders.values()}
        holders = [self._holder(name, key, old.get(name)) for name, key in keys.items()]
        self._holders = {self._place(each.key.digest): each for each in holders}
        for name, key in keys.items():
            for kind, there in self._held.items():
                if absent := [each for each in getattr(key, kind) or () if each not in there]:
                    log.warning("keys.%s.%s: there is no %s here", name, kind, ", ".join(absent))
        self._metrics.key_expiry.clear()
        for holder in holders:
            self._metrics.show_key(holder.name, holder.ends_at_s)

    def _holder(self, name: str, key: KeyConfig, old: KeyHolder | None) -> KeyHolder:
        """Create a key's holder. It keeps the used amount of a rate that has not changed."""
        calls, tokens = self._bucket(key.calls_per_s, key), self._bucket(key.tokens_per_s, key)
        if old is not None and old.key.burst_s == key.burst_s:
            calls = old.calls if old.key.calls_per_s == key.calls_per_s else calls
            tokens = old.tokens if old.key.tokens_per_s == key.tokens_per_s else tokens
        return KeyHolder(name, key, calls, tokens, self._metrics)

    def _bucket(self, per_s: float | None, key: KeyConfig) -> Bucket | None:
        return None if per_s is None else Bucket(per_s, key.burst_s, clock_s=self._clock_s)

    def _place(self, digest: bytes) -> bytes:
        """The key of a digest in the table.

        It is hashed with a secret of this process, so that the time of a look-up reveals nothing about any
        digest.
        """
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def _shown_key(header: Header) -> str | None:
    """The key that a call sends. `x-api-key` wins: a proxy may use `authorization` for itself."""
    if key := header("x-api-key"):
        return key.strip()
    scheme, _, rest = (header("authorization") or "").strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else None
