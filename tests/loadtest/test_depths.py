"""Depths of reading are named as `--depth` takes them, and each is compared once."""

import pytest

from farrank_cli.depth_flag import depth
from farrank_client import AdaptiveDepth
from farrank_loadtest.depths import Depth, check_depths, depth_text, is_adaptive
from farrank_loadtest.errors import LoadtestError

DEPTHS: dict[str, Depth] = {
    "all": "all",
    "adaptive": "adaptive",
    "adaptive,chunks=4": AdaptiveDepth(chunks=4),
    "adaptive,tokens=5000": AdaptiveDepth(tokens=5000),
    "adaptive,milliseconds=300": AdaptiveDepth(milliseconds=300),
}


@pytest.mark.parametrize("text", DEPTHS)
def test_the_text_of_a_depth_is_the_flags_value(text: str) -> None:
    assert depth_text(DEPTHS[text]) == text
    assert depth(text) == DEPTHS[text]


def test_a_depth_is_adaptive_unless_it_is_all() -> None:
    assert [text for text, each in DEPTHS.items() if not is_adaptive(each)] == ["all"]
    assert not is_adaptive(None)


def test_the_same_depth_twice_is_refused_by_its_text() -> None:
    check_depths(tuple(DEPTHS.values()))
    with pytest.raises(LoadtestError, match=r"^depth adaptive,chunks=4: is given twice$"):
        check_depths((AdaptiveDepth(chunks=4), "all", AdaptiveDepth(chunks=4)))
