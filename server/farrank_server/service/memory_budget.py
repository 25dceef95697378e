"""The limit on the bytes of rankers' weights: which rankers leave so that another one fits."""

from collections.abc import Collection

from farrank_calls.errors import FailedPrecondition
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.engine.versions import Versions
from farrank_settings.errors import ConfigError


class MemoryBudget:
    """Chooses the rankers that leave. `limit` None sets no limit. Belongs to the event loop.

    While a ranker is loaded, its weights are in memory beyond the limit: their size is known only then.
    Raises: ConfigError if the rankers that are loaded first exceed it.
    """

    def __init__(self, limit: int | None, versions: Versions) -> None:
        self._limit, self._versions = limit, versions
        if limit is not None and self.total() > limit:
            raise ConfigError(
                f"limits.max_ranker_bytes: is {limit:,}; the configured rankers have {self.total():,} bytes"
            )

    def leaving_for(self, new: Scorer, replaced: Scorer | None, may_leave: Collection[str]) -> list[str]:
        """Return the names of the rankers that must leave for a new one, the least recently used first.

        `replaced` is a version that leaves in any case. A ranker with calls or a canary stays.
        Raises: FailedPrecondition with the figures, if too few may leave.
        """
        if self._limit is None:
            return []
        replaced_bytes = 0 if replaced is None else bytes_of(replaced)
        needed = self.total() + bytes_of(new) - replaced_bytes - self._limit
        idle = [
            self._versions.rankers[name]
            for name in may_leave
            if name != new.name and name not in self._versions.canaries
        ]
        idle = [each for each in idle if not any(member.calls for member in each.members)]
        leaving: list[str] = []
        for each in sorted(idle, key=lambda each: max(member.used_s for member in each.members)):
            if needed <= 0:
                break
            leaving.append(each.name)
            needed -= bytes_of(each)
        if needed > 0:
            raise FailedPrecondition(
                f"limits.max_ranker_bytes: is {self._limit:,}; ranker {new.name} has {bytes_of(new):,} "
                f"bytes, those loaded have {self.total() - replaced_bytes:,}, and "
                f"{sum(map(bytes_of, idle)):,} of them can leave"
            )
        return leaving

    def check(self, scorers: Collection[Scorer]) -> None:
        """Check that rankers fit, whatever else is loaded. Raises: FailedPrecondition with the figures."""
        have = sum(map(bytes_of, scorers))
        if self._limit is not None and have > self._limit:
            names = ", ".join(each.name for each in scorers)
            raise FailedPrecondition(
                f"limits.max_ranker_bytes: is {self._limit:,}; rankers {names} have {have:,} bytes"
            )

    def total(self) -> int:
        """The bytes of all loaded weights, also of versions that have only calls from before."""
        return sum(member.capabilities.weight_bytes for member in dict.fromkeys(self._versions.members()))


def bytes_of(scorer: Scorer) -> int:
    """The bytes of a ranker's weights on its device."""
    return sum(member.capabilities.weight_bytes for member in scorer.members)
