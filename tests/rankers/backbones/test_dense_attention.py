"""Dense attention, for graphs, compared with transformers' sparse code, which it replaces."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deberta_v2 import modeling_deberta_v2

from farrank_rankers.backbones.forms import dense_attention
from farrank_rankers.chunking import Chunking
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate

MakeBackbone = Callable[..., Path]
BLOCK = 8  # with 3 random blocks, inputs of up to 12 blocks have 12


def sparse_ranker(make: MakeBackbone, architecture: str, family: str = "longp", **limits: Any) -> Ranker:
    """A ranker whose attention sees far less than an input: windows of 16 tokens, or blocks of 8."""
    changes = {"attention_window": 16} if architecture == "longformer" else {"block_size": BLOCK}
    folder = make(architecture, positions=640, **changes)
    chunking = Chunking("first" if family == "longp" else "sliding", 300, 300, 300)
    return new_ranker(family, folder, chunking, seed=1, pretrained=False, **limits).eval()


def batch(ranker: Ranker, words: Sequence[int], query: str = "a query") -> list[Tensor]:
    """A batch of inputs of different lengths, padded to the longest."""
    reader = ranker.reader
    asked = reader.read_query(query)
    texts = [" ".join(("search", "engine", "the", "by")[i * i % 7 % 4] for i in range(n)) for n in words]
    chunks = [reader.split(reader.read_document(text))[0] for text in texts]
    inputs = [reader.chunk_input(asked, chunk) for chunk in chunks]
    return [torch.from_numpy(array) for array in collate(inputs, reader.pad_id)]


# In tokens; the query and its special tokens add some 10.
LENGTHS = [[0], [3], [70], [84, 2, 90], [92, 100, 150, 101], [118, 119, 120, 121], [290, 5, 200]]


@pytest.mark.parametrize("architecture", ["longformer", "big_bird"])
@pytest.mark.parametrize("pad_query_to", [None, 24])
@pytest.mark.parametrize("words", LENGTHS, ids=str)
def test_vectors_of_all_tokens_are_those_of_transformers(
    rankers: dict[tuple[str, int | None], Ranker],
    architecture: str,
    pad_query_to: int | None,
    words: list[int],
) -> None:
    ranker = rankers[architecture, pad_query_to]
    inputs = batch(ranker, words)
    real = inputs[1] != 0
    with torch.inference_mode():
        expected = ranker.encoder.run(*inputs, hidden_states=True)
        with dense_attention(ranker.encoder.backbone):
            found = ranker.encoder.run(*inputs, hidden_states=True)
        again = ranker.encoder.run(*inputs, hidden_states=True)
    assert len(found.hidden_states) == len(expected.hidden_states) == 3
    pairs = [(found.last_hidden_state, expected.last_hidden_state)]
    pairs += zip(found.hidden_states, expected.hidden_states, strict=True)
    for each, literal in pairs:
        torch.testing.assert_close(each[real], literal[real], rtol=0, atol=1e-5)
    assert torch.equal(again.last_hidden_state[real], expected.last_hidden_state[real])


@pytest.fixture(scope="module")
def rankers(make_backbone: MakeBackbone) -> dict[tuple[str, int | None], Ranker]:
    made: dict[tuple[str, int | None], Ranker] = {}
    for architecture in ("longformer", "big_bird"):
        made[architecture, None] = sparse_ranker(make_backbone, architecture)
        made[architecture, 24] = sparse_ranker(
            make_backbone, architecture, max_query_tokens=16, pad_query_to=24
        )
    return made


@pytest.mark.parametrize("architecture", ["longformer", "big_bird"])
def test_attention_is_sparse(rankers: dict[tuple[str, int | None], Ranker], architecture: str) -> None:
    """A far token would change the result if all pairs were seen, so the comparison above would notice."""
    ranker = rankers[architecture, None]
    inputs = batch(ranker, [250])
    changed = [inputs[0].clone(), *inputs[1:]]
    changed[0][0, 150] = 20 if changed[0][0, 150] != 20 else 21
    model = ranker.encoder.backbone
    with torch.inference_mode(), dense_attention(model):
        first, second = (
            ranker.encoder.run(*each, hidden_states=True).hidden_states[1] for each in (inputs, changed)
        )
    moved = (first - second).abs().amax(dim=2)[0] > 1e-7  # (L,), after one layer
    assert moved[0]  # [CLS] sees all
    assert moved[150]
    assert not moved[40:120].any()


@pytest.mark.parametrize("architecture", ["longformer", "big_bird"])
def test_a_classifiers_logits_stay(make_backbone: MakeBackbone, architecture: str) -> None:
    ranker = sparse_ranker(make_backbone, architecture, "cross-encoder")
    inputs = batch(ranker, [200, 150, 3])
    with torch.inference_mode():
        expected = ranker.encoder(*inputs).vectors
        with dense_attention(ranker.encoder.backbone):
            found = ranker.encoder(*inputs).vectors
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["longformer", "big_bird", "bert", "jina"])
def test_everything_is_put_back_also_after_a_failure(make_backbone: MakeBackbone, architecture: str) -> None:
    sparse = architecture in ("longformer", "big_bird")
    if sparse:
        ranker = sparse_ranker(make_backbone, architecture)
    else:
        ranker = new_ranker("maxp", make_backbone(architecture), pretrained=False).eval()
    backbone = ranker.encoder.backbone
    before = {name: type(module) for name, module in backbone.named_modules()}
    attributes = set(vars(backbone))
    changed = []

    def fail() -> None:
        with dense_attention(backbone):
            changed.append({name: type(module) for name, module in backbone.named_modules()} != before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert changed == [sparse]
    assert {name: type(module) for name, module in backbone.named_modules()} == before
    assert set(vars(backbone)) == attributes
    assert getattr(backbone, "attention_type", "block_sparse") == "block_sparse"


def test_deberta_does_not_ask_for_the_number_of_keys(
    make_backbone: MakeBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def build_rpos(query: Tensor, key: Tensor, distances: Tensor, buckets: int, furthest: int) -> Tensor:
        asked.append((query.shape, key.shape))
        return distances

    monkeypatch.setattr(modeling_deberta_v2, "build_rpos", build_rpos)
    ranker = new_ranker("maxp", make_backbone("deberta-v2"), pretrained=False).eval()
    inputs = batch(ranker, [60, 3])
    with torch.inference_mode():
        expected = ranker.encoder(*inputs).vectors
        assert asked
        assert all(query == key for query, key in asked)
        asked.clear()
        with dense_attention(ranker.encoder.backbone):
            found = ranker.encoder(*inputs).vectors
    assert asked == []
    assert torch.equal(found, expected)
    assert modeling_deberta_v2.build_rpos is build_rpos
