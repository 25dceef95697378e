"""Finds the ranker that a client means by the name of a model."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from farrank_server.access.callers import Caller
from farrank_server.engine.loaded.ranker import Scorer


class Models:
    """The rankers by their own names, and by the model names that clients of other services send.

    `rankers` begins with the default one. `aliases` maps patterns with `*` to a ranker's name; an empty name
    means the default ranker.
    """

    def __init__(self, rankers: Mapping[str, Scorer], aliases: Mapping[str, str]) -> None:
        self._rankers = rankers
        self._aliases = aliases

    def ranker(self, model: str | None, caller: Caller) -> Scorer:
        """Find the ranker of a model among those that the caller may use; without a model, the default one.

        Raises: NotFound with the known names; PermissionDenied instead for a key that may use only some.
        """
        name = model or ""
        usable, default = caller.rankers(self._rankers), caller.default_ranker(self._rankers)
        if name and name not in usable:
            matching = (to for pattern, to in self._aliases.items() if fnmatchcase(name, pattern))
            found = next(matching, None)
            if found is None or (found and found not in usable):
                aliases = [alias for alias, to in self._aliases.items() if (to or default) in usable]
                raise caller.no_ranker("model", name, (*usable, *aliases))
            name = found
        name = name or default
        if not name:
            raise caller.no_ranker("model", name, ())
        return self._rankers[name]
