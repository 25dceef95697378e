"""Slopes and biases compared with numbers written by hand."""

import pytest
import torch

from farrank_rankers.backbones.alibi_bert import attention_bias, head_slopes
from farrank_rankers.backbones.bert import PADDED

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        # Both rules: 8 heads, then 4 of those that are between them with 16 heads.
        (12, [2**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes(heads: int, slopes: list[float]) -> None:
    torch.testing.assert_close(head_slopes(heads, CPU), torch.tensor(slopes))


def test_bias_is_symmetric_and_hides_padding() -> None:
    bias = attention_bias(torch.tensor([[1, 1, 1, 0]]), 2, torch.float32)
    steep, flat = 2**-4, 2**-8
    assert bias.tolist() == [
        [
            [
                [0, -steep, -2 * steep, PADDED],
                [-steep, 0, -steep, PADDED],
                [-2 * steep, -steep, 0, PADDED],
                [-3 * steep, -2 * steep, -steep, PADDED],
            ],
            [
                [0, -flat, -2 * flat, PADDED],
                [-flat, 0, -flat, PADDED],
                [-2 * flat, -flat, 0, PADDED],
                [-3 * flat, -2 * flat, -flat, PADDED],
            ],
        ]
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_is_finite_and_weighs_nothing(dtype: torch.dtype) -> None:
    """The bias stays finite even with the most distant token of a long text, in the steepest head."""
    mask = torch.ones(1, 2048)
    mask[:, -1] = 0
    bias = attention_bias(mask, 12, dtype)[0, 8, 0]
    assert bias.isfinite().all()
    assert bias[-1] < 10 * bias[-2]
    assert torch.exp(bias[-1] - bias[0]) == 0


def test_bias_does_not_depend_on_how_far_the_batch_is_padded() -> None:
    short = attention_bias(torch.ones(1, 21), 12, torch.float32)
    mask = torch.zeros(1, 50)
    mask[:, :21] = 1
    assert torch.equal(attention_bias(mask, 12, torch.float32)[..., :21, :21], short)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1466])
def test_rows_start_where_kernels_want_them(length: int) -> None:
    """The memory-efficient kernels take strides of 16 as they are, and would otherwise copy the bias."""
    bias = attention_bias(torch.ones(1, length), 3, torch.bfloat16)
    assert bias.shape == (1, 3, length, length)
    assert bias.stride(-1) == 1
    assert all(stride % 16 == 0 for stride in bias.stride()[:-1])
