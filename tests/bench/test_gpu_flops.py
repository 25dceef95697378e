"""The computed operations equal those that torch counts, where a model computes no more than needed."""

from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from farrank_bench.gpu.flops import encoder_flops, seen_pairs
from farrank_bench.gpu.inputs import LONG_QUERY, build_model, full_texts, leading_tokens, real_tokens
from farrank_bench.offline import Request
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import TokenStream, pack
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.papers import BACKBONES
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokenizer import TextTokenizer
from farrank_rankers.tokens import EncoderInput, collate

CPU = torch.device("cpu")


def written_out() -> AbstractContextManager[None]:
    """Attend with matrix products, because torch's counter does not know the CPU's fused attention."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def full_inputs(ranker: Ranker, corpus: list[str]) -> list[EncoderInput]:
    return Request(ranker.reader, LONG_QUERY, full_texts(corpus, ranker.reader, 1)).inputs


@pytest.mark.parametrize("name", ["firstp-bert", "firstp-electra", "longp-jina", "longp-mosaic"])
def test_all_that_a_padded_encoder_multiplies(
    name: str, own_tokenizer: TextTokenizer, long_texts: list[str]
) -> None:
    ranker = build_model(name, own_tokenizer, CPU, tiny=True)
    inputs = full_inputs(ranker, long_texts)
    with written_out(), FlopCounterMode(display=False) as counted, torch.no_grad():
        ranker.encoder(*map(torch.from_numpy, collate(inputs, 0)))
    assert counted.get_total_flops() == encoder_flops(ranker.backbone_config, [real_tokens(inputs[0])])


def test_longformer_by_the_pairs_that_see_each_other(
    own_tokenizer: TextTokenizer, long_texts: list[str]
) -> None:
    ranker = build_model("longp-longformer", own_tokenizer, CPU, tiny=True)
    inputs = full_inputs(ranker, long_texts)
    length, leading = real_tokens(inputs[0]), leading_tokens(inputs[0])
    assert (length, leading) == (1466, 34)
    packing = pack(inputs)
    stream = TokenStream.of(torch.from_numpy(packing.tokens), torch.from_numpy(packing.offsets), packing)
    with written_out(), FlopCounterMode(display=False) as counted, torch.no_grad():
        PackedEncoder(ranker.encoder, plain_attention).encode(stream)
    # The plain kernel scores every pair and masks some; pairs with global tokens it scores twice. The surplus
    # does not count.
    in_vain = length**2 + leading * length - seen_pairs(length, 256, leading)
    layers, width = ranker.backbone_config["num_hidden_layers"], ranker.backbone_config["hidden_size"]
    expected = encoder_flops(ranker.backbone_config, [length], leading) + layers * 4 * width * in_vain
    assert counted.get_total_flops() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("length", "reach", "leading"), [(1, 2, 0), (7, 2, 3), (40, 5, 4), (9, 20, 2), (6, 1, 6)]
)
def test_pairs_are_those_of_a_written_out_mask(length: int, reach: int, leading: int) -> None:
    places = np.arange(length)
    near = np.abs(places[:, None] - places) <= reach
    is_global = places < leading
    assert seen_pairs(length, reach, leading) == (near | is_global | is_global[:, None]).sum()


def test_bert_base_as_computed_by_hand() -> None:
    config = BACKBONES["google-bert/bert-base-uncased"]
    of_layer = 2 * 512 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 2 * 512**2 * 768
    assert encoder_flops(config, [512]) == 12 * of_layer == 96_636_764_160
    assert encoder_flops(config, [512, 512, 100]) == 2 * 96_636_764_160 + encoder_flops(config, [100])


def test_an_architecture_that_is_not_counted_is_refused() -> None:
    config = BACKBONES["microsoft/deberta-v3-base"]
    with pytest.raises(ValueError, match=r"'deberta-v2'; operations are counted for bert, .*longformer"):
        encoder_flops(config, [10])
