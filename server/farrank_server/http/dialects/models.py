"""Which ranker a client means by the name of a model."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from farrank_server.engine.rankers.loaded import Scorer
from farrank_server.errors import NotFound


class Models:
    """The rankers by their own names, and by the names of models that clients ask for without knowing them.

    `rankers` begins with the default one. `aliases` are patterns with `*`, each with a ranker's
    name; the empty name is the default ranker's.
    """

    def __init__(self, rankers: Mapping[str, Scorer], aliases: Mapping[str, str]) -> None:
        self._rankers = rankers
        self._aliases = aliases

    def ranker(self, model: str | None) -> Scorer:
        """Find the ranker of a model; of none, the default one.

        Raises: NotFound listing the known names.
        """
        name = model or ""
        if name not in self._rankers and name:
            matching = (to for pattern, to in self._aliases.items() if fnmatchcase(name, pattern))
            found = next(matching, None)
            if found is None:
                known = ", ".join((*self._rankers, *self._aliases))
                raise NotFound(f"model: no ranker {name[:100]!r} here; known are: {known}")
            name = found
        return self._rankers[name or next(iter(self._rankers))]
