"""Who is calling? The keys of the file as a server holds them, and others in their place when it changes."""

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

from farrank_server.access.callers import ANYONE, Entry, KeyHolder
from farrank_server.access.key_file import KeyConfig, digest_of, read_keys
from farrank_server.access.rates import Bucket
from farrank_server.certificates import state_of
from farrank_server.errors import ConfigError, FarrankError, Unauthenticated, without_words
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# Reads a header of a call, or gRPC's metadata, by its name in lower case; None where there is none.
Header = Callable[[str], str | None]

# How often the file is looked at. A change is noticed within this, and at once with SIGHUP.
WATCH_S = 2.0

# Longer than any key: nobody needs to hash more.
_MAX_SHOWN = 1000


class Keys:
    """The keys of a file. `enter` is asked for each call; belongs to the event loop.

    `held` says which `rankers` and `indexes` there are: the log names what a key lists beside them. `now_s`
    is Unix time, `clock_s` a clock that never goes back. Raises: ConfigError, as `read_keys`.
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
        # A read that began earlier must not replace the keys of one that began later.
        self._reloading = asyncio.Lock()

    def enter(self, header: Header) -> Entry:
        """Find out who is calling, and count the call against the key's rate."""
        entry = self.identify(header)
        if entry.refusal is not None:
            return entry
        try:
            entry.caller.begin()
        except FarrankError as error:
            return Entry(entry.caller, error.with_traceback(None))
        return entry

    def identify(self, header: Header) -> Entry:
        """Find out who is calling; nothing is counted."""
        key = _shown_key(header)
        if not key:
            told = "a key is needed: send it as x-api-key, or as authorization: Bearer KEY"
            return Entry(ANYONE, Unauthenticated(told, "missing"))
        digest = digest_of(key[:_MAX_SHOWN])
        holder = self._holders.get(self._place(digest))
        if holder is None or not hmac.compare_digest(holder.key.digest, digest):
            return Entry(ANYONE, Unauthenticated("the key is unknown here, or was revoked", "unknown"))
        if holder.ends_at_s is not None and self._now_s() >= holder.ends_at_s:
            told = f"key {holder.name}: expired at {holder.key.expires}"
            return Entry(holder, Unauthenticated(told, "expired"))
        return Entry(holder)

    async def reload(self) -> None:
        """Read the file again, on a thread; calls in flight end with the rights that they began with.

        Raises: ConfigError; the keys stay as they are then.
        """
        async with self._reloading:
            # A file that changes while it is read differs from this state, and is read once more.
            self._seen = await asyncio.to_thread(state_of, self._path)
            try:
                keys = await asyncio.to_thread(read_keys, self._path)
            except ConfigError as error:
                self._metrics.key_reloads.labels("failed").inc()
                log.error("the keys stay as they are: %s", "; ".join(error.problems))
                raise
            self._replace(keys)
        self._metrics.key_reloads.labels("done").inc()
        log.info("the keys are read anew: there are %d", len(keys))

    async def watch(self) -> NoReturn:
        """Reload whenever the file changes."""
        while True:
            await asyncio.sleep(WATCH_S)
            # A disk may be slow.
            if await asyncio.to_thread(state_of, self._path) != self._seen:
                try:
                    await self.reload()
                except ConfigError:
                    # It is logged and counted.
                    pass
                except Exception as error:
                    # The watch goes on: without it no key could be revoked any more.
                    self._metrics.key_reloads.labels("failed").inc()
                    log.error("the keys stay as they are: %s", without_words(error))

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
        """Make a key's holder; what it has used of a rate that stays as it was is not forgotten."""
        calls, tokens = self._bucket(key.calls_per_s, key), self._bucket(key.tokens_per_s, key)
        if old is not None and old.key.burst_s == key.burst_s:
            calls = old.calls if old.key.calls_per_s == key.calls_per_s else calls
            tokens = old.tokens if old.key.tokens_per_s == key.tokens_per_s else tokens
        return KeyHolder(name, key, calls, tokens, self._metrics)

    def _bucket(self, per_s: float | None, key: KeyConfig) -> Bucket | None:
        return None if per_s is None else Bucket(per_s, key.burst_s, clock_s=self._clock_s)

    def _place(self, digest: bytes) -> bytes:
        """Where a digest stands in the table.

        Under a secret of this process, so that how long a look-up takes says nothing about any digest.
        """
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def _shown_key(header: Header) -> str | None:
    """The key that a call shows. `x-api-key` wins: `authorization` may be another's on the way."""
    if key := header("x-api-key"):
        return key.strip()
    scheme, _, rest = (header("authorization") or "").strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else None
