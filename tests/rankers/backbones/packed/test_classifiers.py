"""Cross-encoders of every backbone with a classifier have the same logits from streams and padded batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.backbone_facts import ARCHITECTURES
from farrank_rankers.backbones.forms import forms_of
from farrank_rankers.files.open import open_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate
from support.packed_backbones import inputs_of, stream_of

MakeModel = Callable[..., Path]
LENGTHS = (17, 1, 130, 40, 2)
CLASSIFIERS = [name for name in ARCHITECTURES if forms_of(name).head is not None]


def opened(make_model: MakeModel, architecture: str, labels: int) -> Ranker:
    folder = make_model(architecture, labels=labels, positions=256)
    ranker = open_ranker(folder, family="cross-encoder", max_query_tokens=16, window=100).eval()
    with torch.no_grad():
        for parameter in ranker.encoder.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return ranker


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_logits_agree(make_model: MakeModel, architecture: str, labels: int) -> None:
    encoder = opened(make_model, architecture, labels).encoder
    assert encoder.backbone.num_labels == labels
    for padding in (0, 7):
        inputs = inputs_of(encoder, LENGTHS, padding)
        with torch.inference_mode():
            batch = map(torch.from_numpy, collate(inputs, encoder.facts.pad_token_id or 0))
            expected = encoder(*batch).vectors[:, 0]  # (P,)
            features = PackedEncoder(encoder, plain_attention)(stream_of(inputs))
        found = torch.stack([each.vectors[0] for each in features])  # (P,)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert expected.std() > 0.02


def test_llama_scores_the_last_token_that_is_not_paddings(make_model: MakeModel) -> None:
    """A text's own tokens may have padding's id at its end, everywhere, or at its beginning."""
    encoder = opened(make_model, "llama", labels=1).encoder
    pad = encoder.facts.pad_token_id
    assert pad is not None
    inputs = inputs_of(encoder, (30, 12, 20, 5))
    for item, places in zip(inputs[:3], (slice(-4, None), slice(None), slice(0, 3)), strict=False):
        item.input_ids[places] = pad
    with torch.inference_mode():
        expected = encoder(*map(torch.from_numpy, collate(inputs, pad))).vectors
        features = PackedEncoder(encoder, plain_attention)(stream_of(inputs))
        alone = PackedEncoder(encoder, plain_attention)(stream_of(inputs[1:2]))
    torch.testing.assert_close(torch.stack([each.vectors for each in features]), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(alone[0].vectors, expected[1], rtol=0, atol=1e-5)


def test_llama_without_padding_scores_the_last_token(make_model: MakeModel) -> None:
    encoder = opened(make_model, "llama", labels=1).encoder
    config: Any = encoder.backbone.config
    config.pad_token_id = None
    inputs = inputs_of(encoder, LENGTHS)
    with torch.inference_mode():
        # transformers takes only one input at a time then.
        expected = [encoder(*map(torch.from_numpy, collate([item], 0))).vectors[0] for item in inputs]
        found = PackedEncoder(encoder, plain_attention)(stream_of(inputs))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.vectors, theirs, rtol=0, atol=1e-5)
