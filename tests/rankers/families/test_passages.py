"""The families compared with their formulas, computed one chunk at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from farrank_rankers.aggregate import Aggregator, combine
from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

QUERY = "neural query"
DOCUMENTS = [
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world; tokens score its model, unlike documents elsewhere",
    "hello world",
    "",
]
CHUNKS = {
    "firstp": (Chunking("first", 16, 16, 48), [(0, 16)]),
    "avgp": (Chunking("disjoint", 16, 16, 44), [(0, 16), (16, 32), (32, 44)]),
    "maxp": (Chunking("sliding", 16, 10, 44), [(0, 16), (10, 26), (20, 36), (30, 44)]),
    "sump": (Chunking("sliding", 16, 10, 44), [(0, 16), (10, 26), (20, 36), (30, 44)]),
}


@pytest.mark.parametrize("family", CHUNKS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_scores_follow_the_formula(cross_encoder: Path, family: str, document: str) -> None:
    """Hugging Face's own tokenizer and model, plain lists and loops: nothing is shared with the package."""
    chunking, bounds = CHUNKS[family]
    ranker = new_ranker(family, cross_encoder, chunking, seed=5).eval()
    tokenizer = AutoTokenizer.from_pretrained(cross_encoder)
    backbone = AutoModel.from_pretrained(cross_encoder).eval()
    weight, bias = ranker.aggregator.state_dict().values()
    query = tokenizer(QUERY, add_special_tokens=False)["input_ids"]
    tokens = tokenizer(document, add_special_tokens=False)["input_ids"]

    vectors: list[list[float]] = []
    for first, end in bounds:
        chunk = tokens[first : min(end, len(tokens))]
        if first > 0 and first >= len(tokens):
            break
        if vectors and bounds[len(vectors) - 1][1] >= len(tokens):
            break  # the last chunk reached the document's end
        ids = [tokenizer.cls_token_id, *query, tokenizer.sep_token_id, *chunk, tokenizer.sep_token_id]
        segments = [0] * (len(query) + 2) + [1] * (len(chunk) + 1)
        with torch.inference_mode():
            output = backbone(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([segments]))
        vectors.append(output.last_hidden_state[0, 0].tolist())

    def head(vector: list[float]) -> float:
        products = [float(w) * x for w, x in zip(weight[0], vector, strict=True)]
        return sum(products) + float(bias)

    each = [head(vector) for vector in vectors]
    mean = [sum(values) / len(vectors) for values in zip(*vectors, strict=True)]
    expected = {"firstp": each[0], "avgp": head(mean), "maxp": max(each), "sump": sum(each)}[family]

    found = ranker.score(QUERY, [document], count_tokens=True)[0]
    assert found.score == pytest.approx(expected, rel=0, abs=1e-5)
    assert list(found.chunk_scores) == pytest.approx(each, rel=0, abs=1e-5)
    assert found.deciding == each.index(max(each))
    assert found.tokens_cut == max(0, len(tokens) - bounds[-1][1])


@pytest.mark.parametrize("family", CHUNKS)
def test_the_head_is_dropout_and_a_xavier_linear(cross_encoder: Path, family: str) -> None:
    head = new_ranker(family, cross_encoder).aggregator.head
    assert isinstance(head, torch.nn.Module)
    dropout, linear = head.children()
    assert isinstance(dropout, torch.nn.Dropout)
    assert dropout.p == 0.1
    assert isinstance(linear, torch.nn.Linear)
    assert tuple(linear.weight.shape) == (1, 32)
    assert linear.weight.abs().max() <= (6 / 33) ** 0.5
    assert linear.weight.std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_decide_all_that_is_random(
    cross_encoder: Path, tiny_options: dict[str, dict[str, Any]], family: str
) -> None:
    options = tiny_options.get(family)

    def version(seed: int, pretrained: bool) -> str:
        torch.manual_seed(seed * 100)
        return new_ranker(family, cross_encoder, seed=seed, pretrained=pretrained, options=options).version

    assert version(1, True) == version(1, True)
    assert version(1, False) == version(1, False)
    assert version(1, False) != version(2, False)
    # These have no head of their own: with a pretrained backbone no weight is random.
    whole = family in ("biencoder", "cross-encoder", "yes-no")
    assert (version(1, True) == version(2, True)) == whole


def test_making_a_ranker_leaves_the_random_state_alone(cross_encoder: Path) -> None:
    before = torch.get_rng_state()
    new_ranker("maxp", cross_encoder)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("family", ["avgp", "maxp"])
def test_a_document_without_chunks_is_refused(cross_encoder: Path, family: str) -> None:
    aggregator: Aggregator[Any] = new_ranker(family, cross_encoder).aggregator
    with pytest.raises(ValueError, match="chunk_mask: document 1 has no chunk"):
        aggregator(Features(torch.zeros(2, 1, 32)), torch.tensor([[True], [False]]))


def test_combining_chunk_scores() -> None:
    scores = torch.tensor([[-3.0, -1.0, 9.0]])
    mask = torch.tensor([[True, True, False]])
    assert combine(scores, mask, "first").item() == -3
    assert combine(scores, mask, "mean").item() == -2
    assert combine(scores, mask, "max").item() == -1
    assert combine(scores, mask, "sum").item() == -4


def test_chunks_after_the_first_are_no_evidence_for_firstp(cross_encoder: Path) -> None:
    aggregator = new_ranker("firstp", cross_encoder).eval().aggregator
    features, mask = Features(torch.randn(1, 3, 32)), torch.tensor([[True, True, False]])
    scores, chunk_scores = aggregator.explain(features, mask)
    assert chunk_scores.tolist() == [[scores.item(), -torch.inf, -torch.inf]]


def test_a_biencoder_needs_its_query(cross_encoder: Path) -> None:
    ranker: Ranker = new_ranker("biencoder", cross_encoder)
    with pytest.raises(ValueError, match="query is None"):
        ranker.aggregator(Features(torch.zeros(1, 1, 32)), torch.ones(1, 1, dtype=torch.bool))


def test_scoring_an_empty_query_or_nothing(cross_encoder: Path) -> None:
    ranker = new_ranker("maxp", cross_encoder)
    assert ranker.score(QUERY, []) == []
    with pytest.raises(ValueError, match="query holds no token; it needs at least 1"):
        ranker.score(" ", ["hello"])


def test_scoring_switches_dropout_off_and_on_again(cross_encoder: Path) -> None:
    ranker = new_ranker("maxp", cross_encoder).train()
    first, second = (ranker.score(QUERY, DOCUMENTS[:1])[0].score for _ in range(2))
    assert first == second
    assert ranker.training
    assert ranker.aggregator.training
