"""The torch runtime on padded batches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Precision, PrecisionAbsent
from farrank_runtimes.torch_runtime import TorchRuntime
from support.runtime_scores import QUERY, TEXTS, scores_through


# bf16 has 8 bits of significand: an error of some 0.4% of the largest value in a sum.
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_cpu_scores_are_the_rankers_own(
    tiny_rankers: dict[str, Path], precision: Precision, bound: float
) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers["avgp"]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers["avgp"])
    runtime = TorchRuntime(ranker, precision, "cpu")
    assert runtime.capabilities().precision == precision
    assert scores_through(runtime, ranker.reader) == pytest.approx(wanted, abs=bound)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("bf16", 2e-2)])
def test_cuda_scores_are_the_rankers_own(
    tiny_rankers: dict[str, Path], precision: Precision, bound: float
) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers["avgp"]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers["avgp"])
    assert scores_through(TorchRuntime(ranker, precision, "cuda:0"), ranker.reader) == pytest.approx(
        wanted, abs=bound
    )


def test_a_precision_that_torch_does_not_serve_is_refused(tiny_rankers: dict[str, Path]) -> None:
    with pytest.raises(PrecisionAbsent, match=r"^torch serves fp32 and bf16, not int8$"):
        TorchRuntime(open_ranker(tiny_rankers["avgp"]), "int8", "cpu")


def test_the_last_layer_leaves_out_tokens_that_nothing_reads(tiny_rankers: dict[str, Path]) -> None:
    ranker = open_ranker(tiny_rankers["maxp"])
    runtime = TorchRuntime(ranker, device="cpu", threads=1)
    tokens: list[int] = []
    for layer in ranker.encoder.get_submodule("backbone.encoder.layer").children():
        layer.get_submodule("intermediate").register_forward_hook(
            lambda _, given, __: tokens.append(given[0].shape[1])
        )
    runtime.encode([EncoderInput(*(np.ones(9, dtype=np.int32) for _ in range(3)))])
    assert tokens == [9, 1]


def test_warming_up_measures_a_speed(tiny_rankers: dict[str, Path]) -> None:
    assert TorchRuntime(open_ranker(tiny_rankers["maxp"]), device="cpu").warm_up() > 0
