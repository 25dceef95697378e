"""Longformer: the tokens that all others see."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from farrank_rankers.backbones.longformer import global_positions
from farrank_rankers.chunking import Chunking
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.tokens import Role, collate

MakeBackbone = Callable[..., Path]


def test_the_first_token_the_query_and_the_first_separator_are_global() -> None:
    roles = torch.tensor(
        [
            [1, 2, 2, 0, 0, 1, 1, 3, 3, 1, 0],  # <s> q q pad pad </s> </s> d d </s> pad
            [1, 2, 2, 2, 2, 1, 1, 1, 0, 0, 0],  # an empty document
        ]
    )
    assert global_positions(roles).int().tolist() == [
        [1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
    ]


def test_the_reader_gives_the_roles_that_it_needs(make_backbone: MakeBackbone) -> None:
    reader = new_ranker("longp", make_backbone("longformer"), pad_query_to=32).reader
    query = reader.read_query("a b c")
    item = reader.chunk_input(query, reader.split(reader.read_document("d e"))[0])
    marked = global_positions(torch.from_numpy(item.roles)[None])[0]
    assert marked.nonzero()[:, 0].tolist() == [0, *range(1, len(query) + 1), 33]
    assert item.roles[33] == Role.SPECIAL


@pytest.mark.parametrize(("family", "separators"), [("longp", 1), ("maxp", 1), ("cross-encoder", 2)])
def test_one_separator_stands_before_documents(
    make_backbone: MakeBackbone, family: str, separators: int
) -> None:
    """The published code builds its pairs with one separator; a cross-encoder keeps the tokenizer's pair."""
    chunking = Chunking("sliding", 60, 60, 60)
    reader = new_ranker(
        family, make_backbone("longformer"), chunking, pad_query_to=32, pretrained=False
    ).reader
    chunk = reader.split(reader.read_document("hello world"))[0]
    item = reader.chunk_input(reader.read_query("a b c"), chunk)
    between = item.roles[33 : item.roles.tolist().index(Role.DOCUMENT)]
    assert between.tolist() == [Role.SPECIAL] * separators
    assert item.roles.tolist().index(Role.DOCUMENT) == 33 + separators
    # The largest window of a backbone is computed with the same tokens.
    assert reader.max_input_tokens == 1 + 32 + separators + 60 + 1


def test_global_attention_reaches_beyond_the_window(make_backbone: MakeBackbone) -> None:
    """The window is 16 tokens on each side: effects at the far end come through the query's global tokens."""
    folder = make_backbone("longformer", num_hidden_layers=1)
    ranker = new_ranker("longp", folder).eval()
    reader = ranker.reader
    chunk = reader.split(reader.read_document("far " * 200))[0]
    inputs = [reader.chunk_input(reader.read_query(query), chunk) for query in ("one", "two")]
    with torch.inference_mode():
        hidden = [
            ranker.encoder.run(*map(torch.from_numpy, collate([item], reader.pad_id))).last_hidden_state
            for item in inputs
        ]
    assert (hidden[0][0, -2] - hidden[1][0, -2]).abs().max() > 1e-4


def test_a_classifier_keeps_what_it_was_trained_with(make_backbone: MakeBackbone) -> None:
    ranker = new_ranker(
        "cross-encoder", make_backbone("longformer"), Chunking("sliding", 60, 60, 60), pretrained=False
    ).eval()
    model = AutoModelForSequenceClassification.from_config(ranker.encoder.backbone.config).eval()
    model.load_state_dict(ranker.encoder.backbone.state_dict())
    reader = ranker.reader
    chunk = reader.split(reader.read_document("search engine " * 20))[0]
    item = reader.chunk_input(reader.read_query("a query"), chunk)
    with torch.inference_mode():
        expected = model(input_ids=torch.from_numpy(item.input_ids)[None].long()).logits
        found = ranker.encoder(*map(torch.from_numpy, collate([item], reader.pad_id))).vectors
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
