"""The configuration of a server from its settings, and as a JSON Schema."""

from collections.abc import Iterable

from farrank_first_stage.kinds import INDEX_KINDS
from farrank_server.config.schema import ServerConfig
from farrank_settings.json_schema import Schema, json_schema
from farrank_settings.sources import Setting, build


def build_config(settings: Iterable[Setting]) -> ServerConfig:
    """Build a server's configuration. Raises: ConfigError with every problem, as `build`."""
    return build(ServerConfig, settings, INDEX_KINDS)


def config_schema() -> Schema:
    """Describe the configuration as a JSON Schema."""
    return json_schema(ServerConfig, INDEX_KINDS)
