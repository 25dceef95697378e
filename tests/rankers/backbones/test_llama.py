"""Llama: a decoder that was trained without padding."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.tokens import collate

MakeBackbone = Callable[..., Path]


@pytest.mark.parametrize(
    ("config", "pad"),
    [
        ({"eos_token_id": 2}, 2),
        ({"eos_token_id": [7, 8]}, 7),
        ({"eos_token_id": 2, "pad_token_id": 5}, 5),
        ({"eos_token_id": 2, "pad_token_id": 0}, 0),
    ],
)
def test_without_a_padding_token_the_end_of_text_serves(config: dict[str, int], pad: int) -> None:
    assert BackboneFacts.from_config({"model_type": "llama", **config}).pad_token_id == pad
    assert BackboneFacts.from_config({"model_type": "bert", "eos_token_id": 2}).pad_token_id is None


def test_the_tokenizer_needs_no_padding_token(make_backbone: MakeBackbone) -> None:
    folder = make_backbone("llama")
    named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert not named.get("pad_token")
    ranker = new_ranker("longp", folder).eval()
    reader = ranker.reader
    assert reader.pad_id == 2
    assert reader.max_input_tokens == 2048  # all positions of the backbone
    item = reader.chunk_input(reader.read_query("q"), reader.split(reader.read_document("d"))[0])
    assert item.roles.tolist() == [1, 2, 1, 3]  # <s> q <s> d


def test_a_token_knows_nothing_of_those_behind_it(make_backbone: MakeBackbone) -> None:
    ranker = new_ranker("longp", make_backbone("llama")).eval()
    reader = ranker.reader
    inputs = [
        reader.chunk_input(reader.read_query("a query"), reader.split(reader.read_document(text))[0])
        for text in ("search engine", "search model")
    ]
    with torch.inference_mode():
        hidden = ranker.encoder.run(*map(torch.from_numpy, collate(inputs, reader.pad_id))).last_hidden_state
    same = int((torch.from_numpy(inputs[0].input_ids[:9] != inputs[1].input_ids[:9])).nonzero()[0, 0])
    torch.testing.assert_close(hidden[0, :same], hidden[1, :same], rtol=0, atol=1e-5)
    assert (hidden[0, same] - hidden[1, same]).abs().max() > 1e-3


def test_no_keys_and_values_are_kept(make_backbone: MakeBackbone) -> None:
    ranker = new_ranker("longp", make_backbone("llama")).eval()
    ids = torch.randint(5, 100, (2, 9))
    output = ranker.encoder.run(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert output.past_key_values is None
