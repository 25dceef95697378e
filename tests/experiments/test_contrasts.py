"""Differences are tested over questions and seeds, and families of tests together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from farrank_experiments.contrasts import ALPHA, RESAMPLES, adjusted, contrast

RNG = np.random.default_rng(5)


def values(mean: float, seeds: int, questions: int, spread: float = 0.3) -> np.ndarray:
    return mean + spread * RNG.standard_normal((seeds, questions))


def test_one_seed_each_is_tested_like_the_paired_t_test() -> None:
    ours, theirs = values(0.56, 1, 400), values(0.5, 1, 400)
    found = contrast(ours, theirs)
    paired = stats.ttest_rel(ours[0], theirs[0])

    assert found.difference == pytest.approx(float(ours.mean() - theirs.mean()))
    assert found.error == pytest.approx(stats.sem(ours[0] - theirs[0]), rel=0.05)
    assert found.p == pytest.approx(paired.pvalue, rel=0.3, abs=3 / RESAMPLES)


def test_seeds_that_differ_make_a_difference_uncertain() -> None:
    questions = RNG.standard_normal(400) * 0.3
    steady = np.stack([questions + 0.05] * 3)
    wavering = np.stack([questions - 0.15, questions + 0.05, questions + 0.25])
    base = np.stack([questions] * 3)

    certain, uncertain = contrast(steady, base), contrast(wavering, base)
    assert certain.difference == pytest.approx(uncertain.difference)
    assert certain.p == pytest.approx(2 / (RESAMPLES + 1))
    assert uncertain.p is not None
    assert uncertain.p > ALPHA


def test_equal_rankers_are_seldom_different() -> None:
    p_values = [contrast(values(0.5, 2, 60), values(0.5, 2, 60)).p for _ in range(30)]

    assert sum(p is not None and p < 0.05 for p in p_values) <= 6
    assert np.ptp(np.array(p_values, dtype=float)) > 0.5


def test_the_detectable_difference_is_detected_four_times_in_five() -> None:
    equal = contrast(values(0.5, 1, 100), values(0.5, 1, 100))
    above = 0.5 + equal.detectable
    found = [contrast(values(above, 1, 100), values(0.5, 1, 100)).p for _ in range(40)]

    assert equal.detectable == pytest.approx(3.417 * equal.error, rel=0.001)
    assert 20 <= sum(p is not None and p < ALPHA for p in found) <= 39


def test_one_question_proves_nothing() -> None:
    assert contrast(values(0.9, 3, 1), values(0.1, 3, 1)).p is None


def test_a_family_of_tests_is_corrected_in_steps() -> None:
    assert adjusted({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert adjusted({"only": 0.2}) == {"only": 0.2}
    assert adjusted({}) == {}
