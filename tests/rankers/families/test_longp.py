"""LongP: documents and queries of every length, read up to the backbone's limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

MakeBackbone = Callable[..., Path]
ARCHITECTURES = ("longformer", "big_bird", "jina", "mosaic", "llama")
LENGTHS = (0, 1, 476, 477, 478, 954, 1431, 5000)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def ranker(request: pytest.FixtureRequest, make_backbone: MakeBackbone) -> Ranker:
    folder = make_backbone(request.param)
    pretrained = request.param not in ("jina", "mosaic")
    return new_ranker("longp", folder, seed=2, pretrained=pretrained, max_document_tokens=1431).eval()


def words(ranker: Ranker, tokens: int) -> str:
    """Make a text with exactly this number of tokens: a letter is a token in all of these vocabularies."""
    text = " ".join("ab"[i * i % 7 % 2] for i in range(tokens))
    if len(ranker.reader.tokenizer.ids(text)) != tokens:
        text = text.replace(" ", "")
    assert len(ranker.reader.tokenizer.ids(text)) == tokens
    return text


@pytest.mark.parametrize("query_tokens", [1, 32, 100])
def test_every_length_is_read(ranker: Ranker, query_tokens: int) -> None:
    query = words(ranker, query_tokens)
    documents = [words(ranker, length) for length in LENGTHS]
    found = ranker.score(query, documents, batch_size=3, count_tokens=True)
    for length, document, item in zip(LENGTHS, documents, found, strict=True):
        assert torch.tensor(item.score).isfinite()
        assert item.tokens_cut == max(0, length - 1431)
        assert [len(chunk) for chunk in item.chunks] == [min(length, 1431)]
        assert item.chunk_scores == (item.score,)
        assert item.deciding == 0
        assert (item.chunks[0].start, item.chunks[0].end) == (0, len(document[: item.chunks[0].end]))
    alone = [ranker.score(query, [document])[0].score for document in documents]
    assert [item.score for item in found] == pytest.approx(alone, rel=0, abs=1e-5)


def test_the_score_is_the_heads_of_the_whole_document(make_backbone: MakeBackbone) -> None:
    """Hugging Face's own tokenizer and model, and an explicit sum: nothing is shared with the package."""
    folder = make_backbone("llama")
    ranker = new_ranker("longp", folder, seed=5).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    weight, bias = ranker.aggregator.state_dict().values()
    for document in ("a search engine " * 300, "hello world", ""):
        query = tokenizer("neural query", add_special_tokens=False)["input_ids"]
        tokens = tokenizer(document, add_special_tokens=False)["input_ids"][:1431]
        start = tokenizer.bos_token_id
        with torch.inference_mode():
            output: Any = model(input_ids=torch.tensor([[start, *query, start, *tokens]]))
        hidden = output.last_hidden_state[0].tolist()
        mean = [sum(column) / len(hidden) for column in zip(*hidden, strict=True)]
        expected = sum(float(w) * x for w, x in zip(weight[0], mean, strict=True)) + float(bias)
        assert ranker.score("neural query", [document])[0].score == pytest.approx(expected, rel=0, abs=1e-5)


def test_a_short_backbone_gets_a_short_window(make_backbone: MakeBackbone) -> None:
    chunking = new_ranker("longp", make_backbone("bert", positions=512)).spec.chunking
    assert (chunking.kind, chunking.window, chunking.max_document_tokens) == ("first", 477, WHOLE_DOCUMENT)
    chunking = new_ranker("longp", make_backbone("bert", positions=4096)).spec.chunking
    assert (chunking.window, chunking.stride) == (4061, 4061)
