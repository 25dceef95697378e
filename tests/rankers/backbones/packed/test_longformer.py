"""Longformer on streams: windows by position, and global tokens wherever tokenizers put them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from farrank_rankers.backbones.longformer import (
    GlobalTokens,
    first_tokens,
    frames_and_queries,
    global_positions,
)
from farrank_rankers.errors import SourceError
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import EncoderInput, Role, collate
from support.packed_backbones import Case, MakeEncoder, inputs_of, packed_states, padded_states, stream_of

LETTERS = {"s": Role.SPECIAL, "q": Role.QUERY, "d": Role.DOCUMENT, ".": Role.PADDING}


def written(roles: str) -> EncoderInput:
    """Make an input from roles written as letters."""
    given = np.array([LETTERS[letter] for letter in roles], dtype=np.int32)
    ids = np.arange(5, 5 + len(given), dtype=np.int32)
    return EncoderInput(ids, given, np.zeros_like(given))


# The frames of tokenizers for pairs and single texts, and how far from an input's ends a token may be global.
FRAMES = {
    "pairs": (["sqqsdddddds", "sqqqqsds"], (6, 0)),
    "pairs with two separators": (["sqqssdddddds", "sqssds"], (4, 0)),
    "pairs with places left free": (["sq...sdddddds", "sqqqqsds"], (6, 0)),
    "pairs without a special token in front": (["qqsdddddds", "qsds"], (3, 1)),
    "pairs without a special token between": (["sqqqdddddds", "sqqdds"], (4, 1)),
    "chunks alone": (["sdddddds", "sds", "ss"], (2, 1)),
    "chunks framed as pairs": (["ssdddddds", "sss"], (2, 0)),
    "a query alone": (["sqqqqs"], (6, 0)),
    "a query behind a prefix": (["ssssqqs"], (2, 3)),
    "one token": (["s"], (1, 0)),
}


def counted(stated: GlobalTokens, lengths: Sequence[int]) -> None:
    """Check that a stream's facts about its global tokens are true."""
    flags = torch.split(stated.flags, list(lengths))
    assert stated.bounds.lengths == tuple(int(each.sum()) for each in flags)
    assert torch.equal(stated.indices, stated.flags.nonzero()[:, 0])
    assert stated.bounds.offsets.dtype == torch.int32
    assert stated.bounds.offsets.diff().tolist() == list(stated.bounds.lengths)
    for each in flags:
        assert not each[stated.leading : max(stated.leading, len(each) - stated.trailing)].any()


@pytest.mark.parametrize(("inputs", "reach"), FRAMES.values(), ids=FRAMES)
def test_global_tokens_are_those_of_padded_batches(inputs: list[str], reach: tuple[int, int]) -> None:
    read = [written(each) for each in inputs]
    stream = stream_of(read)
    found = frames_and_queries(stream)
    roles = torch.from_numpy(collate(read, 0).roles)
    assert torch.equal(found.flags, global_positions(roles)[roles != Role.PADDING])
    assert (found.leading, found.trailing) == reach
    counted(found, stream.bounds.lengths)


def test_a_classifiers_global_tokens_are_the_first() -> None:
    stream = stream_of([written("sqsds"), written("s"), written("qds")])
    found = first_tokens(stream)
    assert found.indices.tolist() == [0, 5, 6]
    assert (found.leading, found.trailing) == (1, 0)
    counted(found, stream.bounds.lengths)


@pytest.mark.parametrize("padding", [0, 23])
def test_states_around_windows_and_far_beyond(make_encoder: MakeEncoder, padding: int) -> None:
    encoder = make_encoder(Case("longformer", {"attention_window": [32, 64]}))
    inputs = inputs_of(encoder, (16, 17, 18, 32, 33, 34, 64, 65, 1431), padding)
    packed = PackedEncoder(encoder, plain_attention)
    for mine, theirs in zip(packed_states(packed, inputs), padded_states(encoder, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [inputs for inputs, _ in FRAMES.values()], ids=FRAMES)
def test_states_whatever_the_frame(make_encoder: MakeEncoder, inputs: list[str]) -> None:
    """The window is two tokens on either side, so that the effect of global tokens shows."""
    encoder = make_encoder(Case("longformer", {"attention_window": 4}))
    read = [written(each) for each in inputs]
    packed = PackedEncoder(encoder, plain_attention)
    for mine, theirs in zip(packed_states(packed, read), padded_states(encoder, read), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_far_tokens_are_seen_by_global_ones_alone(make_encoder: MakeEncoder) -> None:
    """The comparisons above would notice if every token saw all others."""
    encoder = make_encoder(Case("longformer", {"attention_window": 16}))
    inputs = inputs_of(encoder, (200,))
    changed = inputs_of(encoder, (200,))
    changed[0].input_ids[150] = 5 if inputs[0].input_ids[150] != 5 else 6
    packed = PackedEncoder(encoder, plain_attention)
    first, second = (packed_states(packed, each)[0][:, 1] for each in (inputs, changed))  # after one layer
    moved = (first - second).abs().amax(dim=1) > 1e-7
    assert moved[:11].all()
    assert not moved[11:142].any()
    assert moved[142:159].all()
    assert not moved[159:].any()


def test_adapted_projections_are_left_to_padded_batches(make_encoder: MakeEncoder) -> None:
    class Adapted(nn.Linear):
        """A layer that adds to a linear layer's result."""

    encoder = make_encoder(Case("longformer"))
    own = encoder.backbone.encoder.layer[1].attention.self  # type: ignore[union-attr, index]
    own.key_global = Adapted(32, 32)
    with pytest.raises(SourceError, match="longformer"):
        PackedEncoder(encoder, plain_attention)
