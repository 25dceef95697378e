"""Places are drawn by the dose of bias, and the report tells whether the loss follows the dose."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from farrank_experiments.asking import Values
from farrank_experiments.doses import DOSES, dose_section, dosed, losses
from farrank_experiments.questions import at_place

PLACES = 4


def values(lost: float, seed: int, questions: int = 80) -> Values:
    """Give questions an MRR that is less behind the first place."""
    rng = np.random.default_rng(seed)
    of_questions = {str(number): 0.8 + 0.05 * rng.standard_normal() for number in range(questions)}
    return {
        at_place(place): {query: value - lost * (place > 1) for query, value in of_questions.items()}
        for place in range(1, PLACES + 1)
    }


def section(*lost: float) -> str:
    found = {dose: [values(each, seed) for seed in range(3)] for dose, each in zip(DOSES, lost, strict=True)}
    return dose_section(found, PLACES)


@pytest.mark.parametrize(("share", "firsts"), [(1.0, 4000), (0.5, 2000), (0.0, 0), (None, 1000)])
def test_a_share_of_relevant_passages_is_first(share: float | None, firsts: int) -> None:
    place, rng = dosed(share), Random(2)
    drawn = Counter(place(4, rng) for _ in range(4000))

    assert drawn[1] == pytest.approx(firsts, abs=120)
    behind = [drawn[each] for each in (2, 3, 4)]
    assert max(behind) - min(behind) < 150
    assert place(1, rng) == 1


def test_the_loss_is_that_of_the_first_place_against_all_later_ones() -> None:
    of_places = {at_place(1): {"q": 0.9}, at_place(2): {"q": 0.5}, at_place(3): {"q": 0.7}}

    assert losses([of_places], 3) == pytest.approx(np.array([[0.3]]))


def test_a_loss_that_rises_with_the_dose_confirms_the_finding() -> None:
    found = section(0.3, 0.2, 0.1, 0.0)

    assert "| 86% | 0." in found
    assert "80 questions, 3 seeds" in found
    assert ": yes; they differ by +0.300, p 0.0" in found


@pytest.mark.parametrize("lost", [(0.1, 0.1, 0.1, 0.1), (0.3, 0.1, 0.2, 0.0), (0.0, 0.1, 0.2, 0.3)])
def test_another_order_does_not(lost: tuple[float, ...]) -> None:
    assert ": no; they differ by " in section(*lost)
