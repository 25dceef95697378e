"""Heads that read tokens learn from stored encodings, score like whole rankers, and follow their seeds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from farrank_experiments.contenders import CONTENDERS, chunking_of, contender_ranker
from farrank_experiments.heads import train_head
from farrank_experiments.kept_heads import fill_head, save_head
from farrank_experiments.pairs import PairFeatures, encoded_by
from farrank_experiments.questions import BIASED, FAR, AskedQuestion
from farrank_experiments.settings import HeadSettings, quick
from farrank_experiments.token_heads import KeptTokens, by_tokens, drawn_documents
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

pytestmark = pytest.mark.usefixtures("one_thread")

OF_TOKENS = [each.name for each in CONTENDERS.values() if not each.has_vectors]
QUERY = "old harbour stone"
WORDS = ["sea", "bread", "under", "river", "king", "queen", "house", "tree", "red", "the", "of", "1984"]
# Words of the query that only the relevant passage has.
ANSWER = ["old", "harbour", "stone"]
SETTINGS = quick("tiny")


@pytest.fixture(scope="module")
def passages(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("passages") / "ranker"
    chunking = chunking_of("firstp", SETTINGS)
    save_ranker(new_ranker("firstp", tiny_backbone, chunking, seed=1, pretrained=False), folder)
    return folder


def ranker_of(name: str, passages: Path, seed: int = 0) -> Ranker:
    return contender_ranker(CONTENDERS[name], passages, SETTINGS, seed).eval()


def made_questions(ranker: Ranker, count: int) -> tuple[list[AskedQuestion], list[list[str]]]:
    rng, questions, texts = np.random.default_rng(5), [], []
    for number in range(count):
        pool = [" ".join(rng.choice(WORDS, SETTINGS.chunk_tokens - 9 * (each == 0))) for each in range(6)]
        pool[0] = " ".join(ANSWER * 3) + " " + pool[0]
        documents = [(2, 0, 3), (4, 1, 5)]
        tokens = [ranker.reader.read_document(text).ids for text in pool]
        conditions = {BIASED: documents, FAR: documents}
        questions.append(AskedQuestion(str(number), QUERY, tokens, conditions, 0))
        texts.append(pool)
    return questions, texts


def features_of(passages: Path) -> PairFeatures:
    return encoded_by(ranker_of("cedr-knrm", passages), lower_precision=False)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_document_scores_as_its_text(name: str, passages: Path) -> None:
    ranker = ranker_of(name, passages)
    (question,), (pool,) = made_questions(ranker, 1)
    # The same passages in another order after the first one, another first one, and one alone.
    documents = [(2, 0, 3), (2, 3, 0), (0, 2, 3), (4,), (1, 5, 4, 3)]

    with torch.inference_mode():
        found = by_tokens({"it": ranker}, features_of(passages))(question)(documents)["it"]

    whole = ranker.score(QUERY, ["\n\n".join(pool[place] for place in each) for each in documents])
    assert found.tolist() == pytest.approx([each.score for each in whole], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_stored_encodings_score_like_fresh_ones(name: str, passages: Path, tmp_path: Path) -> None:
    ranker, kept = ranker_of(name, passages), KeptTokens(tmp_path)
    questions, _ = made_questions(ranker, 2)
    features = features_of(passages)
    kept.write(features, questions, 2, lambda said: None)

    for epoch in range(2):
        found = kept.scores(ranker, FAR)(questions, epoch, Random(0))
        assert found.shape == (2, 2)
        for of_question, question in zip(found, questions, strict=True):
            documents = drawn_documents(question, FAR, epoch)
            expected = by_tokens({"it": ranker}, features)(question)(documents)["it"]
            # The encodings are stored in fp16.
            assert of_question.tolist() == pytest.approx(expected.tolist(), rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_head_learns_and_follows_its_seed_and_the_backbone_stays(
    name: str, passages: Path, tmp_path: Path
) -> None:
    questions, _ = made_questions(ranker_of(name, passages), 8)
    features, kept = features_of(passages), KeptTokens(tmp_path)
    settings = HeadSettings(most_epochs=12, batch_size=4, learning_rates=(1e-2,))
    kept.write(features, questions, settings.most_epochs, lambda said: None)

    def trained(seed: int) -> Ranker:
        ranker = ranker_of(name, passages)
        losses = [
            train_head(ranker, kept.scores(ranker, FAR), questions, each, seed).loss
            for each in (BRIEF, settings)
        ]
        assert losses[1] < 0.5 * losses[0]
        return ranker

    one = trained(1)
    backbone = ranker_of(name, passages).encoder.backbone.state_dict()
    assert all(torch.equal(each, backbone[key]) for key, each in one.encoder.backbone.state_dict().items())
    again = trained(1).state_dict()
    assert all(torch.equal(each, again[key]) for key, each in one.state_dict().items())

    save_head(one, tmp_path / "head")
    opened = ranker_of(name, passages, seed=9)
    fill_head(opened, tmp_path / "head")
    assert opened.version == one.version
    with pytest.raises(ValueError, match="does not hold a head of maxp"):
        fill_head(ranker_of("maxp", passages), tmp_path / "head")


BRIEF = HeadSettings(most_epochs=1, batch_size=4, learning_rates=(1e-9,))
