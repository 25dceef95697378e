"""A parsed `config.json` as transformers reads it."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from farrank_rankers.errors import SourceError

# A slip of the pen must not build a model for hours; -1 heads even divide every size, and fail in use alone.
LIMITED = ("num_hidden_layers", "num_attention_heads")
AT_MOST = 1_000


def transformers_config(config: Mapping[str, Any]) -> Any:
    """Make a parsed `config.json` the configuration object that transformers builds models from.

    Raises: SourceError if transformers does not know the architecture, or naming the key beyond its limits.
    """
    model_type = config.get("model_type")
    try:
        built = AutoConfig.for_model(
            model_type, **{name: value for name, value in config.items() if name != "model_type"}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"config.json: model_type {model_type!r} cannot be built: {error}") from error
    for key in LIMITED:
        value = getattr(built, key, None)
        if isinstance(value, int) and not 1 <= value <= AT_MOST:
            raise SourceError(f"config.json: {key} is {value}; it must be from 1 to {AT_MOST:,}")
    built.dtype = None  # models are built in torch's default and converted afterwards
    return built
