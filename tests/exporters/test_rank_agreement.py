import numpy as np
import pytest

from farrank_exporters.parity import top_overlap


def test_the_top_is_shared() -> None:
    scores = np.arange(6.0)
    assert top_overlap(scores, scores * 2, 3) == 1
    assert top_overlap(scores, -scores, 3) == 0
    assert top_overlap(scores, np.array([9.0, 1, 2, 3, 4, 5]), 3) == pytest.approx(2 / 3)
    assert top_overlap(scores, -scores, 10) == 1
