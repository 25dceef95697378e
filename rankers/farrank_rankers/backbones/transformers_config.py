"""A parsed `config.json` as transformers reads it."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from farrank_rankers.errors import SourceError


def transformers_config(config: Mapping[str, Any]) -> Any:
    """Make a parsed `config.json` the configuration object that transformers builds models from.

    Raises: SourceError if transformers does not know the architecture.
    """
    model_type = config.get("model_type")
    try:
        built = AutoConfig.for_model(
            model_type, **{name: value for name, value in config.items() if name != "model_type"}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"config.json: model_type {model_type!r} cannot be built: {error}") from error
    built.dtype = None  # models are built in torch's default and converted afterwards
    return built
