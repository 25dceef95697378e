"""Declaration of commands' flags: each in the form of its help, with the type of its value."""

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from farrank_cli.exit_codes import CommandError

Value = TypeVar("Value")


def flag(
    to: argparse._ActionsContainer,
    form: str,
    meaning: str,
    reads: Callable[[str], Any] = str,
    default: Any = None,
    *,
    repeated: bool = False,
    **more: Any,
) -> None:
    """Add a flag to a parser, or to one of its groups.

    `form` is shown in the help: `--depth N` takes a value, `--tls` is a switch. A `repeated` flag gives a
    list. The help ends with the default, unless `meaning` names it. `more` goes to argparse.
    """
    names = [word for word in form.split() if word.startswith("--")]
    metavar = next((word for word in form.split() if word not in names), None)
    if metavar is None and "choices" not in more:
        assert (reads, default, repeated, more) == (str, None, False, {}), f"{form}: a switch takes no value"
        to.add_argument(*names, action="store_true", help=meaning)
        return
    if repeated:
        more, default = more | {"action": "append"}, []
    elif default not in (None, "", []) and "%(default)" not in meaning:
        meaning += " (%(default)g)" if isinstance(default, float) else " (%(default)s)"
    to.add_argument(*names, type=reads, default=default, metavar=metavar, help=meaning, **more)


def flag_group(parser: argparse.ArgumentParser, title: str, description: str | None = None) -> partial[None]:
    """Begin a group in the help; return a function that adds flags to it."""
    return partial(flag, parser.add_argument_group(title, description))


def add_commands(
    parser: argparse.ArgumentParser, summaries: Mapping[str, str], **more: Any
) -> dict[str, argparse.ArgumentParser]:
    """Add a subcommand for each name, described by its summary; `more` goes to argparse."""
    commands = parser.add_subparsers(**more)
    return {
        name: commands.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        for name, summary in summaries.items()
    }


def at_least(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Read a whole number from `least` to `most`."""

    def whole(text: str) -> int:
        value = _converted(int, text, "a whole number")
        if not least <= value <= most:
            limits = f"below {least}" if most == math.inf else f"not between {least} and {most}"
            raise argparse.ArgumentTypeError(f"{text} is {limits}")
        return value

    return whole


# Fits in the int32 of the gRPC API.
count = at_least(1, 2**31 - 1)


def _number(holds: Callable[[float], bool], wrong: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = _converted(float, text, "a number")
        if not (math.isfinite(value) and holds(value)):
            raise argparse.ArgumentTypeError(f"{text} is {wrong if math.isfinite(value) else 'not finite'}")
        return value

    return read


positive = _number(lambda value: value > 0, "not above 0")
not_negative = _number(lambda value: value >= 0, "below 0")
share = _number(lambda value: 0 < value < 1, "not above 0 and below 1")


def listed(each: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Read values separated by commas."""
    return lambda text: [each(part) for part in text.split(",")]


def _converted(kind: Callable[[str], Value], text: str, what: str) -> Value:
    try:
        return kind(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from error


DOCUMENT_FIELDS = "keys of the JSON lines if they have other names: id=url,text=body,title=headline"


def document_fields(given: str) -> dict[str, str]:
    """Read the keys of a document's id, text and title in a collection's lines.

    Raises: CommandError naming --fields and its form.
    """
    fields = dict(each.partition("=")[::2] for each in given.split(","))
    known = ("id", "text", "title")
    if not (all(fields.values()) and fields.keys() <= set(known)):
        raise CommandError(f"--fields {given}: must be FIELD=KEY,…; a FIELD is {', '.join(known)}")
    return fields


def pair(form: str, given: str, *, empty: bool = False) -> tuple[str, str]:
    """Split the value of a flag such as `--ranker NAME=SOURCE` at its first `=`.

    Raises: CommandError naming the flag and its form if a side is empty; with `empty` the second may be.
    """
    name, equals, value = given.partition("=")
    if not (name and equals and (value or empty)):
        flag_name, shape = form.split()
        raise CommandError(f"{flag_name} {given}: must be {shape}")
    return name, value


def not_given(flags: Mapping[str, Any], why: str) -> None:
    """Refuse a flag that would have no effect. Raises: CommandError naming it."""
    for name, value in flags.items():
        if value is not None:
            raise CommandError(f"{name}: {why}")


def all_or_none(flags: Mapping[str, Any]) -> None:
    """Refuse a part of flags that belong together. Raises: CommandError naming one, and the missing ones."""
    missing = [name for name, value in flags.items() if value is None]
    given = [name for name, value in flags.items() if value is not None]
    if missing and given:
        raise CommandError(f"{given[0]}: needs {', '.join(missing)}")
