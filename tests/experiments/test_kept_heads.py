"""Heads are kept one by one, and a kept head is not trained again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farrank_experiments.heads import Learned
from farrank_experiments.kept_heads import KeptHeads
from farrank_rankers.files.untrained import new_ranker

LEARNED = Learned(1e-2, 7, 0.25, 0.875, converged=True)


def test_a_kept_head_is_not_trained_again(tmp_path: Path, tiny_backbone: Path) -> None:
    kept, ranker = KeptHeads(tmp_path), new_ranker("maxp", tiny_backbone, seed=1, pretrained=False)

    def train() -> Learned:
        with torch.no_grad():
            for weight in ranker.aggregator.parameters():
                weight.fill_(0.5)
        return LEARNED

    assert kept.trained(ranker, "far-0", train) == LEARNED

    other = new_ranker("maxp", tiny_backbone, seed=2, pretrained=False)
    assert kept.trained(other, "far-0", lambda: pytest.fail("trained again")) == LEARNED
    assert all(bool((weight == 0.5).all()) for weight in other.aggregator.parameters())
    assert kept.learned("far-0") == LEARNED


def test_a_head_that_was_cut_off_is_trained_again(tmp_path: Path, tiny_backbone: Path) -> None:
    kept, ranker = KeptHeads(tmp_path), new_ranker("maxp", tiny_backbone, seed=1, pretrained=False)
    kept.file("far-0").write_bytes(b"half a fi")

    assert kept.trained(ranker, "far-0", lambda: LEARNED) == LEARNED
    assert kept.trained(ranker, "far-0", lambda: pytest.fail("trained again")) == LEARNED
