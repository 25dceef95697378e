"""Inputs from drawn tokens and from texts have the lengths that the figures' names state."""

import pytest
import torch

from farrank_bench.gpu.inputs import (
    LONG_QUERY,
    build_model,
    full_texts,
    mixed_texts,
    real_tokens,
)
from farrank_bench.offline import Request, score
from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokenizer import TextTokenizer
from farrank_runtimes.torch_runtime import TorchRuntime

CPU = torch.device("cpu")
FULL = [
    ("firstp-bert", [512]),
    ("parade-attn-bert", [512] * 3),
    ("longp-jina", [1466]),
    ("longp-longformer", [1466]),
]


@pytest.mark.parametrize(("name", "lengths"), FULL)
def test_full_documents(
    name: str, lengths: list[int], long_texts: list[str], own_tokenizer: TextTokenizer
) -> None:
    reader = build_model(name, own_tokenizer, CPU, tiny=True).reader
    read = Request(reader, LONG_QUERY, full_texts(long_texts, reader, 6)).documents
    assert len(read) == 6
    for document in read:
        assert [real_tokens(item) for item in document] == lengths
        assert [item.tokens for item in document] == lengths


def test_texts_differ_and_are_read_whole(long_texts: list[str], own_tokenizer: TextTokenizer) -> None:
    reader = build_model("longp-jina", own_tokenizer, CPU, tiny=True).reader
    texts = full_texts(long_texts, reader, 10)
    assert len(set(texts)) == 10
    assert all((reader.read_document(text, count_tokens=True).tokens_cut or 0) < 50 for text in texts)
    with pytest.raises(ValueError, match="has 5 tokens of 1431"):
        full_texts(["? ? ? ? ?"], reader, 1)


def test_mixed_lengths_are_spread_and_repeatable(long_texts: list[str], own_tokenizer: TextTokenizer) -> None:
    reader = build_model("firstp-bert", own_tokenizer, CPU, tiny=True).reader
    texts = mixed_texts(long_texts, reader, 200)
    lengths = [item.tokens for item in Request(reader, LONG_QUERY, texts).inputs]
    assert len(lengths) == 200
    assert 55 <= min(lengths) < 80
    assert 480 < max(lengths) <= 512
    assert len(set(texts)) == 200
    assert mixed_texts(long_texts, reader, 200) == texts


@pytest.mark.parametrize("name", ["parade-attn-bert", "embedded"])
def test_requests_are_scored_as_rankers_do(
    name: str, long_texts: list[str], own_tokenizer: TextTokenizer
) -> None:
    own = name == "embedded"
    ranker = open_ranker(name) if own else build_model(name, own_tokenizer, CPU, tiny=True)
    texts = [text[:length] for text, length in zip(long_texts, (100, 900, 2000, 3000), strict=True)]
    expected = [each.score for each in ranker.score("abc def", texts, batch_size=1)]
    found = score(TorchRuntime(ranker, "fp32", "cpu"), Request(ranker.reader, "abc def", texts))
    assert found == pytest.approx(expected, abs=1e-5)
