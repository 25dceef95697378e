"""Callers and their rights and rates, as the endpoints and the methods check them for each call."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network
from types import TracebackType
from urllib.parse import unquote

from farrank_calls.errors import (
    FarrankError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RateExceeded,
)
from farrank_calls.fairness.fair_order import NOBODY, Account
from farrank_calls.key_file import KeyConfig
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_server.access.rates import Bucket
from farrank_server.metrics import Metrics

# An IPv6 network counts as one caller: its hosts choose their addresses freely in it (RFC 8981).
IPV6_PREFIX = 64


class Caller:
    """All calls with one key: its name and its rights. Belongs to the event loop.

    This class is for a server without keys: it has no name, and may use everything. When the server is full,
    its work is charged to `account`, which has a share of the room.
    """

    name = ""

    def __init__(self, account: Account = NOBODY) -> None:
        self.account = account

    def begin(self) -> None:
        """Count a call. Raises: RateExceeded."""

    def spending(self) -> "Spending":
        """Track the tokens that one call spends; to be entered around the call's work."""
        return _FREE

    def may_rank(self, ranker: str) -> bool:
        """Whether the caller may use a ranker, and may learn of it."""
        return True

    def may_search(self, index: str) -> bool:
        """Whether the caller may use an index, and may learn of it."""
        return True

    def rankers(self, held: Collection[str]) -> Collection[str]:
        """The loaded rankers that the caller may use, in its own order if it has one."""
        return held

    def default_ranker(self, held: Collection[str]) -> str:
        """The ranker of a call that names none: the first loaded one.

        For a key that may not use that one, it is the first of the key's own; empty if the key may use none.
        """
        return next(iter(held))

    def ranker(self, name: str, held: Collection[str], field: str = "options.ranker") -> str:
        """Return the ranker's name for a name in a request; an empty name means the default ranker.

        If a key may use only some rankers, the errors for a forbidden and for a missing ranker are the same.
        Raises: PermissionDenied naming the field and listing the rankers that the caller may use.
        """
        return name

    def no_ranker(self, field: str, name: str, known: Collection[str]) -> FarrankError:
        """The error for a name that no ranker has, with the names that the caller may know."""
        return NotFound(f"{field}: no ranker {name[:100]!r} here; known are: {', '.join(known)}")

    def index(self, name: str, held: Collection[str], field: str = "index") -> str:
        """Return the index's name for a name in a request; an empty name means the only index.

        Raises: as `ranker`; NotFound if an empty name could mean several indexes.
        """
        return name


class KeyHolder(Caller):
    """The caller with a key of the file."""

    def __init__(
        self, name: str, key: KeyConfig, calls: Bucket | None, tokens: Bucket | None, metrics: Metrics
    ) -> None:
        super().__init__(Account(f"key {name}", key.weight))
        self.name = name
        self.key = key
        self.ends_at_s = key.expires_at_s
        self.calls, self.tokens = calls, tokens
        self.spent = metrics.key_tokens.labels(name)

    def begin(self) -> None:
        """Count a call. Raises: RateExceeded."""
        if self.calls is not None and (wait_s := self.calls.take(1)):
            raise self._exceeded("calls_per_s", self.calls, wait_s)

    def spending(self) -> "Spending":
        """Track the tokens that one call spends."""
        return _CountedSpending(self)

    def take_tokens(self, amount: int) -> None:
        """Take the tokens that a call will probably cost. Raises: RateExceeded."""
        if self.tokens is not None and (wait_s := self.tokens.take(amount)):
            raise self._exceeded("tokens_per_s", self.tokens, wait_s)

    def may_rank(self, ranker: str) -> bool:
        """Whether the key may use a ranker."""
        return self.key.rankers is None or ranker in self.key.rankers

    def may_search(self, index: str) -> bool:
        """Whether the key may use an index."""
        return self.key.indexes is None or index in self.key.indexes

    def rankers(self, held: Collection[str]) -> Collection[str]:
        """The loaded rankers that the key may use, in the key's order."""
        allowed = self.key.rankers
        return held if allowed is None else [name for name in dict.fromkeys(allowed) if name in held]

    def default_ranker(self, held: Collection[str]) -> str:
        """The ranker of a call that names none."""
        usable, default = self.rankers(held), next(iter(held))
        return default if default in usable else next(iter(usable), "")

    def ranker(self, name: str, held: Collection[str], field: str = "options.ranker") -> str:
        """Return the ranker's name for a name in a request.

        Raises: PermissionDenied.
        """
        if self.key.rankers is None:
            return name
        usable = self.rankers(held)
        name = name or self.default_ranker(held)
        if name not in usable:
            raise self.no_ranker(field, name, usable)
        return name

    def no_ranker(self, field: str, name: str, known: Collection[str]) -> FarrankError:
        """The error for a name that is not one of the key's rankers, whether or not such a ranker exists."""
        if self.key.rankers is None:
            return Caller.no_ranker(self, field, name, known)
        return self._denied(field, "ranker", name, known)

    def index(self, name: str, held: Collection[str], field: str = "index") -> str:
        """Return the index's name for a name in a request.

        Raises: PermissionDenied; NotFound.
        """
        if self.key.indexes is None:
            return name
        usable = [each for each in held if each in self.key.indexes]
        if not name and len(usable) > 1:
            raise NotFound(
                f"{field}: is empty, and key {self.name} may use several indexes: {', '.join(usable)}"
            )
        if not name and usable:
            return next(iter(usable))
        if name not in usable:
            raise self._denied(field, "index", name, usable)
        return name

    def _denied(self, field: str, kind: str, name: str, usable: Collection[str]) -> PermissionDenied:
        listed = ", ".join(usable) or "none"
        return PermissionDenied(
            f"{field}: key {self.name} may use no {kind} {name[:100]!r}; it may use: {listed}"
        )

    def _exceeded(self, limit: str, bucket: Bucket, wait_s: float) -> RateExceeded:
        retry_after_ms = max(1, math.ceil(wait_s * 1000))
        return RateExceeded(
            f"key {self.name}: has used up its {limit} of {bucket.per_s:g}; retry after {retry_after_ms} ms",
            limit,
            retry_after_ms,
        )


class Spending:
    """Tokens that one call costs its key: estimated before the work, known after it.

    This class is for callers whose tokens are not counted.
    """

    def expect(self, tokens: Callable[[], int]) -> None:
        """Take the tokens that the call will probably cost. Raises: RateExceeded."""

    def answered(self, tokens: int) -> None:
        """Record the tokens that the call did cost."""

    def __enter__(self) -> "Spending":
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back the tokens of a call that costs nothing."""


class _CountedSpending(Spending):
    def __init__(self, holder: KeyHolder) -> None:
        self._holder = holder
        self._taken = 0

    def expect(self, tokens: Callable[[], int]) -> None:
        if self._holder.tokens is not None:
            # Only this needs the size of the texts, which takes time to compute.
            expected = tokens()
            self._holder.take_tokens(expected)
            self._taken = expected

    def answered(self, tokens: int) -> None:
        self._holder.spent.inc(tokens)
        if self._holder.tokens is not None:
            self._holder.tokens.give_back(self._taken - tokens)
        self._taken = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holder.tokens is not None and _is_free(error):
            self._holder.tokens.give_back(self._taken)


def _is_free(error: BaseException | None) -> bool:
    """Whether a call with this error costs its key nothing: invalid, refused, or failed by the server.

    A call whose caller disconnected or was late costs its tokens: the work was done.
    """
    if not isinstance(error, FarrankError):
        return isinstance(error, Exception)
    return error.reason is not None or isinstance(error, (InvalidArgument, Internal))


@dataclass(slots=True, eq=False)
class Entry:
    """A call at its endpoint. With a refusal, `caller` is the one that was identified, if any.

    The method calls `on_admitted` once the call's texts are counted by admission. `role` is that of the
    version that answers, once the method has found it: "serving" or "canary".
    """

    caller: Caller
    refusal: FarrankError | None = None
    record: CallRecord = NO_CALL
    on_admitted: Callable[[], None] = lambda: None
    role: str = ""


_FREE = Spending()
ANYONE = Caller()


def by_address(peer: str) -> Entry:
    """Admit a caller without a key, identified by its address.

    `peer` is the other end of the connection as gRPC writes it. The port is ignored, so that a caller with
    several connections counts once.
    """
    return Entry(Caller(account_of_peer(peer)))


def account_of_peer(peer: str) -> Account:
    """Return the account of a caller that is identified by its address."""
    kind, _, rest = peer.partition(":")
    return _account_at(kind, rest.rpartition(":")[0])


@lru_cache(4096)
def _account_at(kind: str, host: str) -> Account:
    if kind != "ipv6":
        return Account(f"{kind}:{host}")
    address = IPv6Address(unquote(host).strip("[]").partition("%")[0])
    if address.ipv4_mapped is not None:
        return Account(f"ipv4:{address.ipv4_mapped}")
    return Account(f"ipv6:{IPv6Network((address, IPV6_PREFIX), strict=False).network_address}")
