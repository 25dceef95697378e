"""Requirements of training: scores with gradients, no evidence, two groups of weights, the version."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker, pieces
from support.architectures import ARCHITECTURES
from support.training_groups import without_dropout

MakeModel = Callable[..., Path]
QUERY = "neural search engine"
TEXTS = (
    "a search engine ranks passages of the long document by a query, while windows slide over text",
    "hello world",
    "",
    "neural models score the tokens of a passage " * 6,
)
NARROW = {
    "first": Chunking("first", 16, 16, 64),
    "disjoint": Chunking("disjoint", 16, 16, 64),
    "sliding": Chunking("sliding", 16, 10, 64),
}
# As in test_zoo: KNRM's kernel of exact matches amplifies a cosine's last digit.
TOLERANCE = {name: family.rounding for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def rankers(make_model: MakeModel, tiny_options: dict[str, dict[str, Any]]) -> dict[str, Ranker]:
    backbone = make_model("bert")
    return {
        name: new_ranker(
            name, backbone, NARROW[row.chunking], seed=3, options=tiny_options.get(name), max_query_tokens=16
        )
        for name, row in FAMILIES.items()
    }


@pytest.fixture(params=FAMILIES)
def ranker(request: pytest.FixtureRequest, rankers: dict[str, Ranker]) -> Iterator[Ranker]:
    found = rankers[request.param].eval()
    yield found
    found.zero_grad()


def batch_of(ranker: Ranker, queries: int = 1) -> tuple[tuple[Tensor, ...], list[int], Any]:
    """Return all chunks of the texts, their numbers, and in a dual plan a query for each text."""
    reader, dual = ranker.reader, ranker.spec.plan == "dual"
    read = reader.read_query(QUERY)
    split = [reader.split(reader.read_document(text)) for text in TEXTS]
    inputs = [reader.chunk_input(None if dual else read, chunk) for chunks in split for chunk in chunks]
    query = ranker.tensors([reader.query_input(read)] * queries) if dual else None
    return ranker.tensors(inputs), [len(chunks) for chunks in split], query


def test_forward_gives_the_scores_that_are_served(ranker: Ranker) -> None:
    expected = [found.score for found in ranker.score(QUERY, TEXTS)]
    for queries in (1, len(TEXTS)):
        scores = ranker(*batch_of(ranker, queries))
        assert scores.shape == (len(TEXTS),)
        assert scores.tolist() == pytest.approx(expected, rel=1e-5, abs=TOLERANCE[ranker.spec.family])


OTHER_QUERIES = ("passages", QUERY, "the tokens of windows that slide over a document")


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if row.plan == "dual"])
def test_every_query_scores_every_document(rankers: dict[str, Ranker], family: str) -> None:
    ranker = rankers[family].eval()
    expected = [[found.score for found in ranker.score(query, TEXTS)] for query in OTHER_QUERIES]
    batch, counts, _ = batch_of(ranker)
    read = [ranker.reader.query_input(ranker.reader.read_query(query)) for query in OTHER_QUERIES]
    for mode in (False, True):
        without_dropout(ranker).train(mode)
        scores = ranker(batch, counts, ranker.tensors(read), crossed=True)
        assert scores.shape == (len(OTHER_QUERIES), len(TEXTS))
        for row, wanted in zip(scores.tolist(), expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_pairs_have_no_queries_to_cross(rankers: dict[str, Ranker]) -> None:
    batch, counts, _ = batch_of(rankers["maxp"])
    with pytest.raises(ValueError, match="query is None; it must hold the queries that score all documents"):
        rankers["maxp"](batch, counts, crossed=True)


def test_training_reads_inputs_of_like_length_together(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farrank_rankers.ranker._POSITIONS", 40)
    batch, counts, query = batch_of(ranker)
    expected = ranker(batch, counts, query)
    shapes: list[tuple[int, int]] = []
    hook = ranker.encoder.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    scores = without_dropout(ranker).train()(batch, counts, query)
    hook.remove()

    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=TOLERANCE[ranker.spec.family])
    if query is not None:
        assert shapes.pop() == tuple(query[0].shape)
    assert len(shapes) > 1
    assert sum(rows for rows, _ in shapes) == len(batch[0])
    lengths = [length for _, length in shapes]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == batch[0].shape[1] > lengths[-1]


def test_pieces_have_enough_positions_and_hold_all_inputs() -> None:
    lengths = [60, 500, 300, 512, 90, 480, 200, 2000]
    found = pieces(lengths)
    assert found == [[7], [3, 1], [5, 2, 6], [4, 0]]


def test_gradients_flow_through_forward(ranker: Ranker) -> None:
    (ranker(*batch_of(ranker)) * torch.tensor([1.0, -2.0, 3.0, -1.5])).sum().backward()
    for name, weight in ranker.named_parameters():
        assert ".pooler." in name or weight.grad is None or weight.grad.isfinite().all(), name
    embeddings = (
        ranker.encoder.get_parameter("backbone.embeddings.word_embeddings.weight")
        if (ranker.spec.family != "cross-encoder")
        else ranker.encoder.get_parameter("backbone.bert.embeddings.word_embeddings.weight")
    )
    assert embeddings.grad is not None
    assert embeddings.grad.any()


def test_evidence_is_computed_where_it_is_asked_for_alone(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One interaction and one pass of scores are counted, and dropout draws only the numbers for these."""
    aggregator: Aggregator[Any] = ranker.aggregator
    passes: list[int] = []
    evidence: list[Tensor] = []
    score, chunk_scores = aggregator.score, aggregator.chunk_scores

    def counted(state: Any, masks: Tensor) -> Tensor:
        passes.append(len(masks))
        return score(state, masks)

    def noted(state: Any, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        evidence.append(chunk_mask)
        return chunk_scores(state, chunk_mask, scores)

    batch = batch_of(ranker)
    ranker.train()
    torch.manual_seed(1)
    features, chunk_mask, query = ranker._read(*batch)
    score(aggregator.interact(features, chunk_mask, query), chunk_mask[None])
    drawn = torch.get_rng_state()

    monkeypatch.setattr(aggregator, "score", counted)
    monkeypatch.setattr(aggregator, "chunk_scores", noted)
    torch.manual_seed(1)
    ranker(*batch).sum().backward()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert passes == [1]
    assert evidence == []

    ranker.eval()
    before = torch.get_rng_state()
    ranker.explain(*batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(evidence) == 1


def test_no_gradient_flows_through_evidence(ranker: Ranker) -> None:
    explanation = ranker.explain(*batch_of(ranker))
    assert explanation.scores.requires_grad
    assert not explanation.chunk_scores.requires_grad


def test_weights_are_in_two_groups(ranker: Ranker) -> None:
    groups = ranker.parameter_groups()
    assert list(groups) == ["backbone", "other"]
    trained = {id(weight) for weight in ranker.parameters() if weight.requires_grad}
    grouped = [id(weight) for group in groups.values() for weight in group]
    assert sorted(grouped) == sorted(trained)
    names = {id(weight): name for name, weight in ranker.named_parameters()}
    backbone = {names[id(weight)] for weight in groups["backbone"]}
    others = {names[id(weight)] for weight in groups["other"]}
    assert any(".layer." in name for name in backbone)
    if ranker.spec.family == "cross-encoder":
        assert {name.split(".")[2] for name in others} == {"classifier", "bert"}
        assert all(".pooler." in name for name in others if ".bert." in name)
    elif ranker.spec.family == "parade-transf-pretr-lateir":
        # The paper trains both of its transformers with the backbone's rate.
        assert not others
    else:
        assert all(name.startswith("encoder.backbone.") for name in backbone)
        assert not any(name.startswith("encoder.backbone.") for name in others)
        assert bool(others) == (ranker.spec.family != "biencoder")


def test_the_encoder_alone_runs_in_lower_precision_under_autocast(ranker: Ranker) -> None:
    seen: list[torch.dtype] = []
    hook = ranker.aggregator.register_forward_hook(
        lambda *_: seen.append(torch.mm(*[torch.ones(2, 2)] * 2).dtype)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = ranker(*batch_of(ranker))
    hook.remove()
    assert seen == [torch.float32]
    assert scores.dtype == torch.float32


@pytest.mark.parametrize("optimizer", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_a_step_changes_digest_and_version(cross_encoder: Path, optimizer: dict[str, Any]) -> None:
    ranker = new_ranker("maxp", cross_encoder, NARROW["sliding"]).eval()
    before = ranker.weights_digest, ranker.version
    assert (ranker.weights_digest, ranker.version) == before
    adam = torch.optim.AdamW(ranker.parameters(), lr=1e-3, **optimizer)
    ranker.train()
    assert (ranker.weights_digest, ranker.version) == before
    ranker(*batch_of(ranker)).sum().backward()
    adam.step()
    during = ranker.weights_digest, ranker.version
    assert during[0] != before[0]
    assert during[1] != before[1]
    assert (ranker.eval().weights_digest, ranker.version) == during


def test_a_change_in_place_changes_the_digest(cross_encoder: Path) -> None:
    ranker = new_ranker("maxp", cross_encoder, NARROW["sliding"]).eval()
    before = ranker.weights_digest
    with torch.no_grad():
        ranker.aggregator.get_parameter("head.linear.bias").add_(1)
    assert ranker.weights_digest != before


def test_half_precision_keeps_the_digest_of_the_files(cross_encoder: Path, tmp_path: Path) -> None:
    save_ranker(new_ranker("maxp", cross_encoder, NARROW["sliding"]), tmp_path)
    half, full = open_ranker(tmp_path, dtype=torch.bfloat16), open_ranker(tmp_path)
    assert half.weights_digest == full.weights_digest
    half.score(QUERY, TEXTS)
    assert half.version == full.version


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # DeBERTa, when imported
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradient_checkpoints_change_no_gradient(
    make_backbone: Callable[..., Path], architecture: str
) -> None:
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if architecture == "distilbert":
        without_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    elif architecture in ("llama", "qwen2", "qwen3", "gemma", "gemma2"):
        without_dropout = {}
    folder = make_backbone(architecture, **without_dropout)
    ranker = new_ranker(
        "parade-attn", folder, NARROW["sliding"], seed=1, pretrained=architecture not in ("jina", "mosaic")
    ).train()
    ranker.aggregator.eval()  # whose head has dropout, too
    calls: list[str] = []
    # One within a layer, because transformers 5 calls a layer's own hooks once.
    within = next(
        module
        for name, module in ranker.encoder.named_modules()
        if re.search(r"layers?\.0\.", name) and isinstance(module, torch.nn.Linear)
    )
    hook = within.register_forward_pre_hook(lambda *_: calls.append("layer"))

    def gradients() -> dict[str, Tensor]:
        ranker.zero_grad()
        calls.clear()
        ranker(*batch_of(ranker)).sum().backward()
        return {name: weight.grad for name, weight in ranker.named_parameters() if weight.grad is not None}

    plain, once = gradients(), len(calls)
    ranker.activation_checkpointing_enable()
    checkpointed = gradients()
    hook.remove()
    assert len(calls) == 2 * once
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
