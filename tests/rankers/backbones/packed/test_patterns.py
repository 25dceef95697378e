"""The promises of sparse backbones' patterns hold, and no stronger promise would hold."""

import pytest
import torch
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.packed.pattern import Heads, Pattern
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import InputBounds
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import CASES, MakeEncoder, inputs_of, packed_states

SPARSE = ("big_bird", "longformer")
# The reach of windows in tokens, and how far from either end of an input all tokens are seen: for blocks of
# 8, and for a query of 9 tokens between two special ones.
PROMISES = {"big_bird": {(15, 8, 8)}, "longformer": {(8, 11, 0), (24, 11, 0)}}


class Recording:
    """Plain attention that records its arguments."""

    def __init__(self) -> None:
        self.seen: list[tuple[InputBounds, Pattern]] = []

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        self.seen.append((heads.asking, pattern))
        return plain_attention(heads, pattern)


def recorded(encoder: Encoder, lengths: tuple[int, ...], padding: int) -> list[tuple[InputBounds, Pattern]]:
    attention = Recording()
    packed_states(PackedEncoder(encoder, attention), inputs_of(encoder, lengths, padding))
    return attention.seen


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("padding", [0, 23])
def test_no_token_sees_beyond_what_is_promised(make_encoder: MakeEncoder, name: str, padding: int) -> None:
    calls = recorded(make_encoder(CASES[name]), (1, 2, 20, 96, 97, 104, 110, 300), padding)
    sparse = [(segments, pattern) for segments, pattern in calls if pattern.sees is not None]
    assert {(each.near, each.far_seen, each.far_seen_last) for _, each in sparse} == PROMISES[name]
    for segments, pattern in sparse:
        assert pattern.sees is not None
        assert pattern.near is not None
        furthest = 0
        for start, length in zip(segments.offsets.tolist(), segments.lengths, strict=False):
            places = torch.arange(length)
            nothing = torch.zeros(1, dtype=torch.long)
            seen = pattern.sees(nothing, nothing, start + places[:, None], start + places)  # (L, L)
            outer = (places < pattern.far_seen) | (places >= length - pattern.far_seen_last)
            inner = seen & ~outer & ~outer[:, None]
            distances = (places[:, None] - places).abs()
            furthest = max(furthest, int((distances * inner).max()))
            assert seen.diagonal().all()
        assert furthest == pattern.near


def test_layers_of_one_window_share_a_pattern(make_encoder: MakeEncoder) -> None:
    """A kernel that prepares something for a pattern then does so only once."""
    for name in SPARSE:
        case = CASES[name]
        if name == "longformer":
            case = case._replace(changes={"attention_window": [16, 16]})
        patterns = [pattern for _, pattern in recorded(make_encoder(case), (20, 200), 0)]
        assert len({id(pattern) for pattern in patterns if pattern.sees is not None}) == 1
