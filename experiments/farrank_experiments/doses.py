"""Dose and response: a ranker that reads positions, trained on more and on less bias, measured by place.

If position embeddings are the reason why it transfers worse, it must lose the more behind the first chunk,
the more often the relevant passage was there in training. This tells more than a single contrast.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from statistics import fmean

import numpy as np

from farrank_experiments.asking import Values
from farrank_experiments.contrasts import ALPHA, contrast
from farrank_experiments.heads import Place
from farrank_experiments.questions import at_place
from farrank_loadtest.kept_files import markdown_table

# The share of training documents whose first passage is the relevant one; None: each place is as likely.
# 0.86 is that of MS MARCO (Boytsov et al., arXiv 2207.01262).
DOSES: Mapping[str, float | None] = {"100%": 1.0, "86%": 0.86, "50%": 0.5, "uniform": None}


def dosed(share: float | None) -> Place:
    """Draw places with a share of first ones, and all others equally often."""

    def place(chunks: int, rng: Random) -> int:
        if share is None or chunks == 1:
            return rng.randint(1, chunks)
        return 1 if rng.random() < share else rng.randint(2, chunks)

    return place


def losses(seeds: Sequence[Values], places: int) -> np.ndarray:
    """Compute the MRR lost behind the first place, by seed and question. Shape: (S, Q)."""
    return np.array(
        [
            [
                first - fmean(values[at_place(place)][query] for place in range(2, places + 1))
                for query, first in values[at_place(1)].items()
            ]
            for values in seeds
        ]
    )


def dose_section(found: Mapping[str, Sequence[Values]], places: int) -> str:
    """Write the part of the report: MRR by dose and place, and whether the loss rises with the dose."""
    rows, lost = [], {dose: losses(seeds, places) for dose, seeds in found.items()}
    for dose, seeds in found.items():
        of_places = [
            fmean(fmean(values[at_place(place)].values()) for values in seeds)
            for place in range(1, places + 1)
        ]
        rows.append([dose, *(f"{each:.3f}" for each in of_places), f"{lost[dose].mean():+.3f}"])
    heads = ["first in training", *(f"place {place}" for place in range(1, places + 1)), "lost behind 1"]
    strongest, *_, weakest = lost.values()
    its = contrast(strongest, weakest)
    rises = all(one.mean() > other.mean() for one, other in pairwise(lost.values()))
    confirmed = rises and its.p is not None and its.p < ALPHA
    seeds, questions = strongest.shape
    return (
        f"{markdown_table(heads, rows, aligned=False)}\n\n"
        f"MRR of {questions:,} questions, {seeds} seeds. The finding: the more bias in training, the more is "
        "lost behind place 1. It is confirmed if the loss falls with each lower dose, and the first and the "
        f"last differ with p below {ALPHA:g} (bootstrap over questions and seeds): "
        f"{'yes' if confirmed else 'no'}; they differ by {its.difference:+.3f}, p "
        f"{'–' if its.p is None else f'{its.p:.4f}'}, {its.detectable:.3f} is detectable."
    )
