"""Declarations of flags, and the checks of their values."""

import argparse
from typing import Any

import pytest

from farrank_cli.flags import at_least, count, flag


@pytest.mark.parametrize("given", ["0", "-1", "2147483648"])
def test_both_limits_are_named_where_there_are_two(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        count(given)
    assert str(refused.value) == f"{given} is not between 1 and 2147483647"
    assert (count("1"), count("2147483647")) == (1, 2147483647)


def test_a_lower_limit_alone_is_named_alone() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^1 is below 2$"):
        at_least(2)("1")
    assert at_least(2)("2147483648") == 2147483648


@pytest.mark.parametrize("more", [{"reads": int}, {"default": 3}, {"repeated": True}, {"required": True}])
def test_a_switch_that_would_take_a_value_lacks_its_metavar(more: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    with pytest.raises(AssertionError, match=r"^--depth: a switch takes no value"):
        flag(parser, "--depth", "how deep", **more)
    flag(parser, "--depth", "whether deep")
    assert parser.parse_args(["--depth"]).depth is True
