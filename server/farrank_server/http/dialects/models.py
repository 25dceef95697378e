"""Which ranker a client means by the name of a model."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from farrank_server.access.callers import Caller
from farrank_server.engine.rankers.loaded import Scorer


class Models:
    """The rankers by their own names, and by the names of models that clients ask for without knowing them.

    `rankers` begins with the default one. `aliases` are patterns with `*`, each with a ranker's
    name; the empty name is the default ranker's.
    """

    def __init__(self, rankers: Mapping[str, Scorer], aliases: Mapping[str, str]) -> None:
        self._rankers = rankers
        self._aliases = aliases

    def ranker(self, model: str | None, caller: Caller) -> Scorer:
        """Find the ranker of a model, as this caller may use them; of none, the default one.

        Raises: NotFound listing the known names, or for a key that may use some alone PermissionDenied.
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
