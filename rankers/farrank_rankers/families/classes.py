"""A family's classes, imported by the names that its row gives them."""

from importlib import import_module
from typing import Any

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.family import Family


def encoder_class(family: Family) -> type[Encoder]:
    """Import the encoder. Raises: SpecError naming what cannot be imported."""
    found: type[Encoder] = _imported(family.encoder)
    return found


def aggregator_class(family: Family) -> type[Aggregator[Any]]:
    """Import the aggregator. Raises: SpecError naming what cannot be imported."""
    found: type[Aggregator[Any]] = _imported(family.aggregator)
    return found


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module, __package__), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{name} cannot be imported: {error}") from error
