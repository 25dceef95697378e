"""The values of `--depth`, and the errors of wrong ones. `test_rerank.py` has the calls that they make."""

import argparse

import pytest

from farrank_cli.depth_flag import DEPTH_MEANING, depth
from farrank_cli.flags import flag


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("deep", "'deep' is not all, adaptive, or adaptive with one budget, as in adaptive,chunks=4"),
        ("all,chunks=4", "a budget is chunks, tokens or milliseconds"),
        ("adaptive,chunk=4", "'adaptive,chunk=4' is not all"),
        ("adaptive,chunks=0", "0 is not above 0"),
        ("adaptive,chunks=", "'' is not a number"),
        ("adaptive,tokens=0.5", "'0.5' is not a whole number"),
        ("adaptive,milliseconds=0", "0 is not between 1 and 2147483647"),
        ("adaptive,chunks=4,tokens=5", "'4,tokens=5' is not a number"),
    ],
)
def test_a_wrong_depth_is_explained(given: str, problem: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        depth(given)
    assert problem in str(refused.value)


def test_an_error_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    flag(parser, "--depth DEPTH", DEPTH_MEANING, depth)
    with pytest.raises(SystemExit):
        parser.parse_args(["--depth", "adaptive,chunks=0"])
    assert "argument --depth: 0 is not above 0" in capsys.readouterr().err
