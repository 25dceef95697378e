"""A replay reads what the rounds say, and orders documents as the server does."""

import numpy as np

from farrank_rankers.depth.plan import Round
from farrank_rankers.depth.replay import Mask, read_in_rounds, reordered
from farrank_rankers.depth.selection import Floats


def array(*rows: object) -> Floats:
    return np.array(rows, dtype=np.float64)


def max_score(values: Floats, read: Mask) -> Floats:
    best: Floats = np.where(read, values, -np.inf).max(axis=1)
    return best


def test_documents_that_were_read_further_stay_above_the_others() -> None:
    keys = reordered(array(5.0, 9.0, 8.0), np.array([False, True, True]), array(99.0, -3.0, -2.0))
    assert np.argsort(-keys).tolist() == [2, 1, 0]
    tied = reordered(array(5.0, 5.0, 8.0), np.array([False, False, True]), array(0.0, 0.0, 1.0))
    assert tied[0] == tied[1] < tied[2]


def test_rounds_read_more_of_the_best() -> None:
    scores = array([1.0, 2.0, 0.0], [5.0, 0.0, 0.0], [3.0, 8.0, 0.0], [4.0, 0.0, 0.0])
    mask = np.ones((4, 3), dtype=bool)
    mask[3, 1:] = False
    selector = np.broadcast_to(-np.arange(3.0), (4, 3))
    seen: list[Mask] = []

    def score(read: Mask) -> Floats:
        seen.append(read.copy())
        return max_score(scores, read)

    keys, read = read_in_rounds(selector, mask, (Round(1.0, 1), Round(0.75, 1), Round(0.25, 1)), score)
    assert seen[0].sum(axis=1).tolist() == [1, 1, 1, 1]
    # The first chunks order 1, 3, 2, 0: document 0 is read no further, and 3 has no second chunk.
    assert seen[1].sum(axis=1).tolist() == [1, 2, 2, 1]
    # The second chunk of document 2 has the highest score of all.
    assert read.sum(axis=1).tolist() == [1, 2, 3, 1]
    assert np.argsort(-keys).tolist() == [2, 1, 3, 0]


def test_without_a_round_the_selector_orders_documents_and_nothing_is_read() -> None:
    mask = np.array([[True, True], [True, False]])
    keys, read = read_in_rounds(array([0.1, 0.4], [0.3, 9.0]), mask, (), lambda _: np.zeros(2))
    assert keys.tolist() == [0.4, 0.3]
    assert not read.any()


def test_reading_everything_gives_the_order_of_everything() -> None:
    values = np.random.default_rng(1).normal(size=(5, 7))
    mask = np.arange(7) < np.array([1, 7, 3, 5, 2])[:, None]
    keys, read = read_in_rounds(
        -values, mask, (Round(1.0, 3), Round(1.0, 4)), lambda some: max_score(values, some)
    )
    assert (read == mask).all()
    assert np.argsort(-keys).tolist() == np.argsort(-max_score(values, mask)).tolist()
