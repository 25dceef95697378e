"""Documents composed of passages score like the documents themselves; equal scores share their ranks."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from farrank_experiments.asking import ask, by_aggregators, reciprocal_rank
from farrank_experiments.contenders import CONTENDERS, RAND, chunking_of, without_positions
from farrank_experiments.pairs import KeptVectors, encoded_by, scores_of, vectors_by, write_vectors
from farrank_experiments.questions import AskedQuestion
from farrank_experiments.settings import Settings, quick
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.openvino_runtime import computes_bf16

QUERY = "which harbour is old"
# Every word is one token.
WORDS = ["sea", "bread", "harbour", "stone", "under", "old", "river", "king", "queen", "house", "tree", "red"]
POSITIONS = "transformer.bert.embeddings.position_embeddings.weight"
SETTINGS: Settings = quick("tiny")
TOKENS = SETTINGS.chunk_tokens


def passages(count: int) -> list[str]:
    rng = np.random.default_rng(3)
    return [" ".join(rng.choice(WORDS, TOKENS)) for _ in range(count)]


def ranker_of(name: str, backbone: Path, seed: int = 1) -> Ranker:
    contender = CONTENDERS[name]
    options = {"pooling": "mean"} if contender.has_vectors else None
    chunking = chunking_of(contender.family, SETTINGS)
    ranker = new_ranker(contender.family, backbone, chunking, seed, pretrained=False, options=options)
    return (without_positions(ranker) if not contender.reads_positions else ranker).eval()


def question_of(ranker: Ranker, texts: list[str], documents: list[tuple[int, ...]]) -> AskedQuestion:
    pool = [ranker.reader.read_document(text).ids for text in texts]
    return AskedQuestion("q", QUERY, pool, {"made": documents}, relevant=0)


@pytest.mark.parametrize("name", CONTENDERS)
def test_an_arrangement_scores_as_its_text(name: str, tiny_backbone: Path) -> None:
    ranker, texts = ranker_of(name, tiny_backbone), passages(6)
    documents = [(0, 1, 2), (3,), (2, 1, 0, 5), (4, 0)]
    question = question_of(ranker, texts, documents)

    features = encoded_by(ranker, lower_precision=False)(question)
    found = scores_of(ranker.aggregator, features, documents)

    whole = ranker.score(QUERY, ["\n\n".join(texts[place] for place in each) for each in documents])
    expected = torch.tensor([each.score for each in whole])
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_without_positions_the_order_of_passages_says_nothing(tiny_backbone: Path) -> None:
    texts = passages(4)
    documents: list[tuple[int, ...]] = [(0, 1, 2, 3), (3, 1, 0, 2)]
    ranker = ranker_of(RAND, tiny_backbone)
    # Large enough to differ from rounding.
    torch.nn.init.normal_(
        ranker.aggregator.get_parameter(POSITIONS), generator=torch.Generator().manual_seed(2)
    )
    features = encoded_by(ranker, lower_precision=False)(question_of(ranker, texts, documents))

    one, other = scores_of(ranker.aggregator, features, documents)
    assert abs(one - other) > 5e-5
    one, other = scores_of(without_positions(ranker).aggregator, features, documents)
    assert abs(one - other) < 1e-6
    assert not ranker.aggregator.get_parameter(POSITIONS).requires_grad


def test_kept_vectors_are_those_of_the_encoder(tiny_backbone: Path, tmp_path: Path) -> None:
    ranker, texts = ranker_of("maxp", tiny_backbone), passages(3)
    first = question_of(ranker, texts[:2], [(0, 1), (1, 0)])
    second = AskedQuestion("r", "what is red", first.pool[:1], {"made": [(0,)]}, 0)
    features = encoded_by(ranker, lower_precision=False)

    write_vectors(tmp_path / "vectors", features, {"some": [first, second]}, lambda said: None)

    kept = KeptVectors(tmp_path / "vectors").of("some", [first, second])
    assert torch.equal(kept(first).vectors, features(first).vectors)
    assert torch.equal(kept(second).vectors, features(second).vectors)
    with pytest.raises(ValueError, match="some: 3 vectors for 2 pairs"):
        KeptVectors(tmp_path / "vectors").of("some", [first])


def test_vectors_in_lower_precision_are_those_of_the_encoder_but_for_rounding(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    ranker, texts = ranker_of("maxp", tiny_backbone), passages(6)
    # Batches are sorted by length.
    lengths = (20, TOKENS, 5, 33, 12, 40)
    texts = [" ".join(text.split()[:length]) for text, length in zip(texts, lengths, strict=True)]
    question = question_of(ranker, texts, [(0, 1)])

    (found, expected) = (
        vectors_by(ranker, tmp_path, lower_precision=lower)(question).vectors for lower in (True, False)
    )

    assert found.dtype == torch.float32
    assert found.tolist() != expected.tolist()
    assert torch.allclose(found, expected, atol=0.05)
    assert torch.cdist(found, expected).argmin(dim=1).tolist() == [0, 1, 2, 3, 4, 5]
    # OpenVINO computed, where it can.
    assert (tmp_path / "encoder.onnx").exists() == computes_bf16()


def test_firstp_orders_by_first_passages_alone(tiny_backbone: Path) -> None:
    ranker, texts = ranker_of("firstp", tiny_backbone), passages(6)
    question = question_of(ranker, texts, [(4, 1), (5,), (0, 2, 3), (4, 3)])

    shorter = question.first_passages()

    assert shorter.conditions == {"made": [(1,), (2,), (0,), (1,)]}
    assert len(shorter.pool) == 3
    features = encoded_by(ranker, lower_precision=False)
    expected = scores_of(ranker.aggregator, features(question), question.conditions["made"])
    found = scores_of(ranker.aggregator, features(shorter), shorter.conditions["made"])
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3.0, 1.0, 2.0], 1.0),
        ([1.0, 3.0, 2.0], 1 / 3),
        ([2.0, 2.0, 1.0], fmean([1, 1 / 2])),
        ([2.0, 2.0, 2.0, 5.0], fmean([1 / 2, 1 / 3, 1 / 4])),
    ],
)
def test_equal_scores_share_their_ranks(scores: list[float], expected: float) -> None:
    assert reciprocal_rank(torch.tensor(scores), 0) == pytest.approx(expected)


def test_every_condition_is_asked(tiny_backbone: Path) -> None:
    ranker, texts = ranker_of("firstp", tiny_backbone), passages(3)
    made = question_of(ranker, texts, [(0, 1), (1, 0), (2, 0)])
    conditions = {"front": made.conditions["made"], "behind": [(2, 0), (2, 1), (2, 2)]}
    question = AskedQuestion("q", QUERY, made.pool, conditions, 0)

    features = encoded_by(ranker, lower_precision=False)
    values = ask(by_aggregators({"it": ranker.aggregator}, features), [question])["it"]

    # All documents begin with the same passage, so any order is as good.
    assert values["behind"] == {"q": pytest.approx(fmean([1, 1 / 2, 1 / 3]))}
    assert values["front"]["q"] in {1.0, 1 / 2, 1 / 3}
