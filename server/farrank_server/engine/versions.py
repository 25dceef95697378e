"""The loaded versions of each ranker, and the choice of the one that answers a call."""

import hashlib
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from farrank_calls.errors import NotFound
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer

Role = Literal["serving", "canary"]

_HASHES = 2**64

# Names of removed rankers that are remembered with the reason.
GONE = 1000


@dataclass(frozen=True, slots=True)
class Canary:
    """A further version of a ranker, which takes a share of the calls that ask for no version.

    The query decides: a query asked again, here or at another replica, gets the same version. Queries that a
    small share includes are in each larger share, too. Another version takes other queries first.
    """

    scorer: Scorer
    share: float

    def takes(self, query: str) -> bool:
        """Whether the canary answers a query."""
        version, text = self.scorer.version.encode(), query.encode("utf-8", "surrogateescape")
        number = hashlib.blake2b(text, digest_size=8, key=version[: hashlib.blake2b.MAX_KEY_SIZE]).digest()
        return int.from_bytes(number) < self.share * _HASHES


class Versions:
    """The loaded rankers. Belongs to the event loop.

    `rankers` maps each name to the version that serves, in the configured order; the members of an ensemble
    follow it. `loaded` maps the names of single rankers alone. `canaries` are by the name of their ranker.
    `gone` says why names were removed, of the last ones. `on_enter` is called with each ranker that begins to
    take calls, and `on_free` with each that no call uses any more.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.rankers = {each.name: each for scorer in scorers for each in (scorer, *scorer.members)}
        self.loaded = {member.name: member for scorer in scorers for member in scorer.members}
        self.canaries: dict[str, Canary] = {}
        self.gone: dict[str, str] = {}
        self.on_enter: list[Callable[[LoadedRanker], None]] = []
        self.on_free: list[Callable[[LoadedRanker], None]] = []
        # Replaced as a whole, since the thread of the metrics reads it. They have calls that began before a
        # swap.
        self._leaving: tuple[LoadedRanker, ...] = ()

    def find(self, name: str, version: str = "", query: str = "") -> Scorer:
        """Find the ranker that answers a call. The empty name stands for the default ranker.

        `version` has its role, or the first characters of its hash, which versions of the same weights share.
        Without any, the query may choose a canary.
        Raises: NotFound listing the known rankers or the loaded versions.
        """
        name = name or next(iter(self.rankers))
        if name not in self.rankers:
            known = ", ".join(self.rankers)
            why = f", {self.gone[name]}" if name in self.gone else ""
            raise NotFound(f"options.ranker: no ranker {name[:100]!r} here{why}; known are: {known}")
        found = of_name = self.of_name(name)
        if version:
            of_role: dict[str, Scorer] = dict(zip(get_args(Role), of_name, strict=False))
            if version in of_role:
                return of_role[version]
            found = [each for each in of_name if each.version.startswith(version)]
            if len({each.version for each in found}) != 1:
                count = f"{len(found)} loaded versions begin" if found else "no loaded version begins"
                known = ", ".join(each.version for each in of_name)
                raise NotFound(
                    f"options.ranker: {count} with {version[:100]!r}; those of ranker {name} are: {known}"
                )
        if len(found) > 1 and name in self.canaries:
            serving, canary = found
            return canary if self.canaries[name].takes(query) else serving
        return found[0]

    def of_name(self, name: str) -> list[Scorer]:
        """The versions that calls to a name may get: the serving one, then the canary's."""
        beside = [
            each
            for canary in self.canaries.values()
            for each in dict.fromkeys((canary.scorer, *canary.scorer.members))
            if each.name == name
        ]
        return [self.rankers[name], *beside]

    def bi_encoder(self, name: str) -> LoadedRanker:
        """Find a bi-encoder: a ranker that makes one vector of a query.

        Raises: NotFound listing the known bi-encoders.
        """
        known = [each.name for each in self.loaded.values() if each.spec.similarity is not None]
        if name not in known:
            listed = ", ".join(known) or "none"
            raise NotFound(f"no bi-encoder {name[:100]!r} here; known are: {listed}")
        return self.loaded[name]

    def role_of(self, scorer: Scorer) -> Role:
        """Whether a version is that of a canary."""
        beside = [
            each for canary in self.canaries.values() for each in (canary.scorer, *canary.scorer.members)
        ]
        return "canary" if any(scorer is each for each in beside) else "serving"

    def members(self) -> Iterator[LoadedRanker]:
        """All single rankers: those that serve, canaries, and those that have only calls from before."""
        yield from list(self.loaded.values())
        for canary in list(self.canaries.values()):
            yield from canary.scorer.members
        yield from self._leaving

    def keys(self, name: str) -> list[str]:
        """The keys of the versions of a ranker that have calls or may get some. Any thread may ask."""
        return [each.key for each in self.members() if each.name == name]

    @contextmanager
    def using(self, rankers: Sequence[LoadedRanker]) -> Iterator[None]:
        """Keep rankers loaded for the duration of the context."""
        for ranker in rankers:
            ranker.calls += 1
        try:
            yield
        finally:
            for ranker in rankers:
                ranker.calls -= 1
                ranker.used_s = time.monotonic()
                if not ranker.calls and ranker in self._leaving:
                    self._free(ranker)

    def add(self, scorer: Scorer) -> None:
        """Serve a ranker, which is loaded and warm, under a new name."""
        self._enter(scorer)
        self._serve(scorer)

    def remove(self, name: str, why: str) -> None:
        """Serve a ranker no longer: further calls learn why, and it is freed after the last earlier one."""
        self.end_canary(name)
        old = self.rankers.pop(name)
        for member in old.members:
            self.rankers.pop(member.name, None)
            del self.loaded[member.name]
        self.gone[name] = why
        if len(self.gone) > GONE:
            del self.gone[next(iter(self.gone))]
        self._leave(old)

    def begin_canary(self, canary: Canary) -> None:
        """Give a share of the calls to a further version, which is loaded and warm."""
        self._enter(canary.scorer)
        self.canaries[canary.scorer.name] = canary

    def change_share(self, name: str, share: float) -> None:
        """Give a canary another share of the calls."""
        self.canaries[name] = Canary(self.canaries[name].scorer, share)

    def promote(self, name: str) -> None:
        """Give all calls from now on to the canary, which replaces the version that serves.

        Calls that have come finish with the old one, which is freed after the last of them. Both have members
        of the same names.
        """
        scorer, old = self.canaries.pop(name).scorer, self.rankers[name]
        self._serve(scorer)
        self._leave(old)

    def end_canary(self, name: str) -> None:
        """Give all further calls to the version that serves. Nothing happens without a canary."""
        if name in self.canaries:
            self._leave(self.canaries.pop(name).scorer)

    def _enter(self, scorer: Scorer) -> None:
        for member in scorer.members:
            for listener in self.on_enter:
                listener(member)

    def _serve(self, scorer: Scorer) -> None:
        for each in (scorer, *scorer.members):
            self.rankers[each.name] = each
        self.loaded |= {member.name: member for member in scorer.members}

    def _leave(self, scorer: Scorer) -> None:
        self._leaving += scorer.members
        for member in scorer.members:
            if not member.calls:
                self._free(member)

    def _free(self, ranker: LoadedRanker) -> None:
        self._leaving = tuple(each for each in self._leaving if each is not ranker)
        for listener in self.on_free:
            listener(ranker)


def split_version(asked: str, names: Container[str]) -> tuple[str, str]:
    """Split NAME@VERSION into the name and what asks for a version. A ranker's name may contain an @."""
    name, at, version = asked.rpartition("@")
    return (asked, "") if asked in names or not at else (name, version)
