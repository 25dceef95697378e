"""A stream gives every family the same features as padded batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.family import FAMILIES
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import Role, collate
from support.packed_backbones import stream_of
from support.ranker_inputs import inputs_of

MakeModel = Callable[..., Path]


def kept(features: Features) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parts of an input's features that aggregators may read."""
    if features.roles is None:
        return features.vectors, torch.empty(0)
    real = features.roles != Role.PADDING
    return features.vectors[real], features.roles[real]


CASES = [
    (name, padding)
    for name, family in FAMILIES.items()
    for padding in ([None, 12] if family.plan == "pair" else [None])
]


@pytest.mark.parametrize(("family", "pad_query_to"), CASES)
def test_packed_and_padded_features_agree(
    make_model: MakeModel, tiny_options: dict[str, dict[str, Any]], family: str, pad_query_to: int | None
) -> None:
    ranker = new_ranker(
        family,
        make_model("bert"),
        seed=3,
        options=tiny_options.get(family),
        max_query_tokens=12,
        pad_query_to=pad_query_to,
        window=16,
        max_document_tokens=64,
    ).eval()
    inputs = inputs_of(ranker)
    with torch.inference_mode():
        padded = ranker.encoder(*map(torch.from_numpy, collate(inputs, ranker.reader.pad_id))).rows()
        packed = PackedEncoder(ranker.encoder, plain_attention)(stream_of(inputs))
    assert len(packed) == len(inputs)
    for found, expected in zip(packed, padded, strict=True):
        for mine, theirs in zip(kept(found), kept(expected), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
