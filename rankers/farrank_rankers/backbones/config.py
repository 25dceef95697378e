"""The sizes of an ALiBi BERT, read from the `config.json` that its checkpoint comes with."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from farrank_rankers.errors import SourceError


@dataclass(frozen=True, slots=True)
class AlibiBertConfig:
    """Sizes and rates under their names in `config.json`; what is not here has no influence on the encoder.

    `max_position_embeddings` is left out on purpose: ALiBi has no table of positions that could end.
    """

    vocab_size: int
    type_vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    layer_norm_eps: float
    initializer_range: float
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "AlibiBertConfig":
        """Read the parsed `config.json`; nothing is assumed where it is silent.

        Raises: SourceError naming the key that is missing or whose value is out of its limits.
        """
        numbers: dict[str, Any] = {
            field.name: _number(config, field.name, field.type) for field in fields(cls)
        }
        sizes = cls(**numbers)
        if sizes.hidden_size % sizes.num_attention_heads:
            raise SourceError(
                f"config.json: num_attention_heads is {sizes.num_attention_heads}; "
                f"it must divide hidden_size, which is {sizes.hidden_size}"
            )
        return sizes


def require(config: Mapping[str, Any], key: str, supported: str) -> None:
    """Refuse a config whose `key` is not the one value that is implemented here.

    Raises: SourceError naming the key, its value and the supported one.
    """
    if key not in config:
        raise SourceError(f"config.json: {key} is missing; it must be {supported!r}")
    if config[key] != supported:
        raise SourceError(f"config.json: {key} is {config[key]!r}; only {supported!r} is supported")


def require_code(config: Mapping[str, Any], auto_class: str, supported: frozenset[str]) -> None:
    """Refuse a config whose `auto_map` points to other code than that which was written out here.

    Raises: SourceError naming auto_map and the code it should point to.
    """
    auto_map = config.get("auto_map")
    reference = auto_map.get(auto_class) if isinstance(auto_map, Mapping) else None
    if not isinstance(reference, str) or reference not in supported:
        raise SourceError(
            f"config.json: auto_map gives {reference!r} for {auto_class}; a hub's code is never run, and "
            f"only {' or '.join(sorted(supported))} is written out here"
        )


def _number(config: Mapping[str, Any], key: str, kind: Any) -> int | float:
    if key not in config:
        raise SourceError(f"config.json: {key} is missing")
    value = config[key]
    wanted = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise SourceError(
            f"config.json: {key} is {value!r}; it must be {'an integer' if kind is int else 'a number'}"
        )
    if key.endswith("_prob"):
        if not 0 <= value < 1:
            raise SourceError(f"config.json: {key} is {value}; it must be at least 0 and below 1")
    elif not 0 < value < float("inf"):
        raise SourceError(f"config.json: {key} is {value}; it must be greater than 0")
    return value
