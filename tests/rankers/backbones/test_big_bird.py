"""BigBird: one kind of attention for a ranker's lifetime, and blocks that depend only on an input."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from farrank_rankers.chunking import Chunking
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate

MakeBackbone = Callable[..., Path]
QUERY = "a query"
BLOCK = 8  # transformers reads 88 tokens = 11 blocks with full attention, like 704 tokens with blocks of 64
WINDOW = 300


def text(words: int) -> str:
    return " ".join(("search", "engine", "ranks", "the", "passages", "by")[i * i % 6] for i in range(words))


@pytest.fixture(scope="module")
def folder(make_backbone: MakeBackbone) -> Path:
    return make_backbone("big_bird", positions=512, block_size=BLOCK, num_random_blocks=3)


@pytest.fixture(scope="module")
def sparse(folder: Path) -> Ranker:
    return new_ranker("longp", folder, Chunking("first", WINDOW, WINDOW, WINDOW), seed=1).eval()


def vectors(ranker: Ranker, documents: list[str]) -> Any:
    reader = ranker.reader
    query = reader.read_query(QUERY)
    chunks = [reader.split(reader.read_document(each))[0] for each in documents]
    batch = collate([reader.chunk_input(query, chunk) for chunk in chunks], reader.pad_id)
    with torch.inference_mode():
        return ranker.encoder(*map(torch.from_numpy, batch)).vectors


def reference(folder: Path, ranker: Ranker, document: str) -> Any:
    """Run transformers' sparse model on one input, padded here to whole blocks if needed."""
    reader = ranker.reader
    chunk = reader.split(reader.read_document(document))[0]
    item = reader.chunk_input(reader.read_query(QUERY), chunk)
    length = max(-(-item.tokens // BLOCK) * BLOCK, 12 * BLOCK)
    filling = [0] * (length - item.tokens)
    model = AutoModel.from_pretrained(folder).eval()
    assert model.attention_type == "block_sparse"
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([item.input_ids.tolist() + filling]),
            token_type_ids=torch.tensor([item.token_type_ids.tolist() + filling]),
            attention_mask=torch.tensor([[1] * item.tokens + filling]),
        )
    assert model.attention_type == "block_sparse"
    return output.last_hidden_state[0, 0]


@pytest.mark.parametrize("words", [0, 5, 60, 82, 83, 84, 85, 90, 91, 92, 93, 150, 300])
def test_a_long_pass_ranker_reads_every_input_sparsely(folder: Path, sparse: Ranker, words: int) -> None:
    found = vectors(sparse, [text(words)])[0]
    torch.testing.assert_close(found, reference(folder, sparse, text(words)), rtol=0, atol=1e-5)


def test_companions_leave_an_inputs_blocks_alone(sparse: Ranker) -> None:
    documents = [text(words) for words in (3, 90, 120, 200, 121, 300, 0, 119)]
    together = vectors(sparse, documents)
    for document, vector in zip(documents, together, strict=True):
        torch.testing.assert_close(vectors(sparse, [document])[0], vector, rtol=0, atol=1e-5)
    naive = AutoModel.from_config(sparse.encoder.backbone.config).eval()
    naive.load_state_dict(sparse.encoder.backbone.state_dict(), strict=False)
    ids = torch.randint(5, 90, (1, 120))
    with torch.inference_mode():
        short, wide = (
            naive(torch.nn.functional.pad(ids, (0, more)), torch.nn.functional.pad(ids > 0, (0, more)).long())
            for more in (0, 64)
        )
    difference = (short.last_hidden_state[0, 0] - wide.last_hidden_state[0, 0]).abs().max()
    assert difference > 1e-3  # as padding to the batch's longest input would be


def test_a_short_input_changes_nothing_for_long_ones(
    sparse: Ranker, caplog: pytest.LogCaptureFixture
) -> None:
    transformers_logger = logging.getLogger("transformers")
    transformers_logger.addHandler(caplog.handler)
    try:
        before = sparse.score(QUERY, [text(250)])[0].score
        sparse.score(QUERY, [text(2)])
        after = sparse.score(QUERY, [text(250)])[0].score
    finally:
        transformers_logger.removeHandler(caplog.handler)
    assert before == after
    assert caplog.records == []


def test_first_passages_are_read_fully_whatever_their_length(folder: Path) -> None:
    ranker = new_ranker("firstp", folder, Chunking("first", 52, 52, 52)).eval()  # 32 + 53 + 3 = 88 at most
    assert getattr(ranker.encoder.backbone, "attention_type") == "original_full"  # noqa: B009
    longer = new_ranker("firstp", folder, Chunking("first", 54, 54, 54)).eval()
    assert getattr(longer.encoder.backbone, "attention_type") == "block_sparse"  # noqa: B009
    assert [each.reader.max_input_tokens for each in (ranker, longer)] == [87, 89]


def test_a_backbone_too_short_for_sparse_attention_is_read_fully(make_backbone: MakeBackbone) -> None:
    folder = make_backbone("big_bird", positions=90, block_size=BLOCK)
    ranker = new_ranker("longp", folder)
    assert getattr(ranker.encoder.backbone, "attention_type") == "original_full"  # noqa: B009
    assert np.isfinite(ranker.score(QUERY, [text(200)])[0].score)


def test_classifiers_keep_their_kind_of_attention_too(folder: Path) -> None:
    window = Chunking("sliding", 120, 120, WINDOW)
    ranker = new_ranker("cross-encoder", folder, window, pretrained=False, seed=3).eval()
    model = AutoModelForSequenceClassification.from_config(ranker.encoder.backbone.config).eval()
    model.load_state_dict(ranker.encoder.backbone.state_dict())
    reader = ranker.reader
    documents = [text(words) for words in (118, 120, 5)]
    together = [item.chunk_scores[0] for item in ranker.score(QUERY, documents)]
    chunk = reader.split(reader.read_document(documents[0]))[0]
    item = reader.chunk_input(reader.read_query(QUERY), chunk)
    with torch.inference_mode():
        output = model(
            input_ids=torch.from_numpy(item.input_ids)[None].long(),
            token_type_ids=torch.from_numpy(item.token_type_ids)[None].long(),
        )
    assert together[0] == pytest.approx(float(output.logits), rel=0, abs=1e-5)
    alone = [ranker.score(QUERY, [document])[0].chunk_scores[0] for document in documents]
    assert together == pytest.approx(alone, rel=0, abs=1e-5)


def test_numpys_random_state_is_left_alone(sparse: Ranker) -> None:
    np.random.seed(5)
    expected = np.random.random(3)
    np.random.seed(5)
    sparse.score(QUERY, [text(200)])
    assert (np.random.random(3) == expected).all()
