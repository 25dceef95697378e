"""A last layer that computes only first tokens gives them the same vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.backbone_facts import ARCHITECTURES
from farrank_rankers.backbones.forms import forms_of, nothing
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate

MakeModel = Callable[..., Path]
KIN = [name for name in ARCHITECTURES if forms_of(name).first_tokens is not nothing]
TEXTS = ("a search engine ranks passages of the long document by a query", "", "hello world")


def features(ranker: Ranker) -> torch.Tensor:
    """Return the features of inputs of different lengths, some of which are padded."""
    reader = ranker.reader
    query = reader.read_query("neural search")
    inputs = [reader.chunk_input(query, reader.split(reader.read_document(text))[0]) for text in TEXTS]
    with torch.inference_mode():
        vectors: torch.Tensor = ranker.encoder(*map(torch.from_numpy, collate(inputs, reader.pad_id))).vectors
    return vectors


def tokens_fed_forward(ranker: Ranker) -> list[int]:
    """Count the tokens of an input that pass through the feed-forward block of each layer."""
    model: Any = getattr(ranker.encoder.backbone, "base_model", ranker.encoder.backbone)
    counts: list[int] = []
    hooks = [
        layer.intermediate.register_forward_hook(lambda _, given, __: counts.append(given[0].shape[1]))
        for layer in model.encoder.layer
    ]
    features(ranker)
    for hook in hooks:
        hook.remove()
    return counts


@pytest.mark.parametrize("family", ["maxp", "cross-encoder"])
@pytest.mark.parametrize("architecture", KIN)
def test_first_tokens_are_what_they_were(make_model: MakeModel, architecture: str, family: str) -> None:
    ranker = new_ranker(family, make_model(architecture), seed=1, max_query_tokens=16).eval()
    assert ranker.encoder.reads_first_tokens_alone
    whole = features(ranker)
    length = tokens_fed_forward(ranker)[0]
    with ranker.encoder.without_unread():
        torch.testing.assert_close(features(ranker), whole, rtol=1e-6, atol=1e-6)
        assert tokens_fed_forward(ranker) == [length, 1]
    assert tokens_fed_forward(ranker) == [length, length]
    assert torch.equal(features(ranker), whole)


@pytest.mark.parametrize("architecture", ["distilbert", "deberta-v2"])
def test_others_stay_as_they_are(make_model: MakeModel, architecture: str) -> None:
    ranker = new_ranker("cross-encoder", make_model(architecture), seed=1, max_query_tokens=16).eval()
    whole = features(ranker)
    with ranker.encoder.without_unread():
        assert torch.equal(features(ranker), whole)


@pytest.mark.parametrize("family", ["longp", "biencoder"])
def test_a_mean_reads_all_tokens(make_model: MakeModel, family: str) -> None:
    ranker = new_ranker(family, make_model("bert"), options={"pooling": "mean"}, max_query_tokens=16)
    assert not ranker.encoder.reads_first_tokens_alone


@pytest.mark.parametrize("family", ["cedr-drmm", "neural-model1", "parade-transf-pretr-q"])
def test_so_do_families_of_tokens(make_model: MakeModel, family: str) -> None:
    ranker = new_ranker(family, make_model("bert", positions=512), max_query_tokens=16)
    assert not ranker.encoder.reads_first_tokens_alone
