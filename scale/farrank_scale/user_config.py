"""The part of a replica's configuration that Serve changes while it runs: the deployment's `user_config`."""

from dataclasses import replace
from typing import Any

from farrank_first_stage.kinds import INDEX_KINDS
from farrank_server.config.schema import ServerConfig
from farrank_settings import sources
from farrank_settings.errors import ConfigError
from farrank_settings.sources import Setting, build

RANKERS, RELOAD = "rankers", "reload"


def reconfigured(config: ServerConfig, user_config: Any) -> ServerConfig:
    """Return the configuration with the rankers of `user_config`.

    `rankers` there has entries as in Farrank's file. Their keys replace those of the configured ranker of
    that name; other rankers stay, and further names are added. `reload` may have any value: a change of it
    lets the replicas look again at the rankers' files.
    Raises: ConfigError with every problem.
    """
    given = sources.from_tree(user_config, "user_config")
    for each in given:
        if not each.path and each.value != {}:
            raise ConfigError(f"user_config: {each.value!r} is not allowed; it holds keys")
        if each.path and each.path[0] not in (RANKERS, RELOAD):
            raise ConfigError(
                f"user_config.{each.path[0]}: there is no such key; known are: {RANKERS}, {RELOAD}"
            )
    # An entry without keys keeps the ranker as it is.
    kept = [Setting((RANKERS, name), {}, "user_config") for name in config.rankers]
    changed = [each for each in given if each.path[:1] == (RANKERS,)]
    built = build(ServerConfig, [*kept, *changed], INDEX_KINDS, standing=config)
    return replace(config, rankers=built.rankers)
