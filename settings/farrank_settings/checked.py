"""Dataclasses of settings that check all their values when they are created."""

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, TypeVar

from farrank_settings.errors import ConfigError

Value = TypeVar("Value")


def must(default: Value, holds: Callable[[Any], bool], allowed: str, **schema: float) -> Value:
    """Declare a field and the rule for its value; None is always allowed if the type has it.

    `schema` holds the part of the rule that keywords of JSON Schema can express.
    """
    declared: Value = field(default=default, metadata={"holds": holds, "allowed": allowed, "schema": schema})
    return declared


def at_least(minimum: float, default: Value) -> Value:
    """Declare a number with a lower bound."""
    return must(default, lambda value: value >= minimum, f"at least {minimum}", minimum=minimum)


def above_0(default: Value) -> Value:
    """Declare a number above 0."""
    return must(default, lambda value: value > 0, "above 0", exclusiveMinimum=0)


def between(minimum: float, maximum: float, default: Value) -> Value:
    """Declare a number with both bounds."""
    allowed = f"between {minimum} and {maximum}"
    return must(default, lambda value: minimum <= value <= maximum, allowed, minimum=minimum, maximum=maximum)


class CheckedConfig:
    """A dataclass that checks all its fields when it is created.

    Raises: ConfigError with one problem for each wrong field, which begins with the field's name.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check every field against its rule."""
        problems = []
        for each in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, each.name)
            if each.metadata and value is not None and not each.metadata["holds"](value):
                allowed = each.metadata["allowed"]
                problems.append(f"{each.name}: {value!r} is not allowed; it must be {allowed}")
        if problems:
            raise ConfigError(*problems)
