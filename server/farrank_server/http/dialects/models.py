"""Finds the ranker that a client means by the name of a model."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from farrank_calls.errors import NotFound
from farrank_server.access.callers import Caller
from farrank_server.config.schema import HttpConfig
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.engine.versions import split_version


class Models:
    """The rankers by their own names, and by the model names that clients of other services send.

    `rankers` begins with the default one. `config.models` maps patterns with `*` to a ranker's name; an empty
    name means the default ranker. Upper and lower case are the same. `gone` says why names were removed.
    """

    def __init__(
        self,
        rankers: Mapping[str, Scorer],
        config: HttpConfig,
        gone: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._rankers, self._gone = rankers, gone
        self._aliases = config.models
        self._accepts_unknown = config.unknown_models == "default"

    def names(self, caller: Caller) -> Collection[str]:
        """The names of the rankers that the caller may use."""
        return caller.rankers(self._rankers)

    def ranker(
        self, model: str | None, caller: Caller, *, accepts_unknown: bool = False
    ) -> tuple[Scorer, str, str]:
        """Find the ranker of a model among those that the caller may use; without a model, the default one.

        The second value is its name, with the version if the model is NAME@VERSION. Where unknown models are
        accepted, the default ranker stands for them, and the third value is the unknown name; otherwise it is
        empty.
        Raises: NotFound with the known names; PermissionDenied instead for a key that may use only some.
        """
        usable, default = self.names(caller), caller.default_ranker(self._rankers)
        name, version = split_version(model or "", usable)
        if name not in usable:
            name, version = model or "", ""
        unknown = ""
        if name and name not in usable:
            aliases = self._aliases.items()
            matching = (to for alias, to in aliases if fnmatchcase(name.lower(), alias.lower()))
            found = next(matching, None)
            is_known = found == "" or found in usable
            if not is_known and not (accepts_unknown or self._accepts_unknown):
                known = [alias for alias, to in aliases if (to or default) in usable]
                if name in self._gone and caller.may_rank(name):
                    raise NotFound(f"model: no ranker {name!r} here, {self._gone[name]}")
                raise caller.no_ranker("model", name, (*usable, *known))
            name, unknown = (found, "") if found is not None and is_known else ("", name)
        name = name or default
        if not name:
            raise caller.no_ranker("model", name, ())
        return self._rankers[name], f"{name}@{version}" if version else name, unknown
