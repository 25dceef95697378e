"""The kept scores are those of the rankers, and are made once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_bench.depth.chunk_scores import KeptScores, LoadedRanker, chunk_values, padded
from farrank_bench.depth.replay import attended_score
from farrank_bench.depth.whole_documents import JudgedQuestion, WholeDocuments
from farrank_rankers.features import Features
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokenizer import TextTokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW = Overrides(window=20, stride=20, max_document_tokens=10_000)
FIRST = Overrides(window=40, max_document_tokens=40)
LONG = " ".join(f"the harbour {n} has a stone bridge over the river" for n in range(12))
TEXTS = {"a": "a short text about bread", "b": LONG, "c": f"{LONG} and salt"}
QUESTION = JudgedQuestion("q", "which harbour has bread", ("c", "a", "b"), {"a": 2, "d": 1})
COLLECTION = WholeDocuments("nDCG@10", (QUESTION,), TEXTS)


@pytest.fixture(scope="module")
def loaded(tiny_rankers: dict[str, Path]) -> dict[str, LoadedRanker]:
    # Not the windows of the rankers: the scores must be carried over.
    encoder = Overrides(window=30, stride=20)
    opened = {"firstp": FIRST, "maxp": WINDOW, "parade-attn": WINDOW, "biencoder": encoder}
    return {
        family: LoadedRanker.open(str(tiny_rankers[family]), None, overrides)
        for family, overrides in opened.items()
    }


@pytest.fixture
def kept(tmp_path: Path, loaded: dict[str, LoadedRanker]) -> KeptScores:
    return KeptScores(tmp_path, COLLECTION, loaded["maxp"].reader, loaded["biencoder"])


@pytest.mark.parametrize("family", ["maxp", "parade-attn"])
def test_reading_everything_gives_the_rankers_own_scores(
    family: str, kept: KeptScores, loaded: dict[str, LoadedRanker], tiny_rankers: dict[str, Path]
) -> None:
    kept.make(0, loaded[family], loaded["firstp"])
    case = kept.case(0, loaded[family], loaded["firstp"])
    assert case is not None
    documents = [TEXTS[each] for each in QUESTION.candidates]
    expected = open_ranker(str(tiny_rankers[family]), **WINDOW).score(QUESTION.text, documents)
    assert case.mask.sum(axis=1).tolist() == [len(each.chunks) for each in expected]
    assert case.score(case.mask) == pytest.approx([each.score for each in expected], abs=1e-5)
    first = open_ranker(str(tiny_rankers["firstp"]), **FIRST).score(QUESTION.text, documents)
    assert case.firstp == pytest.approx([each.score for each in first], abs=1e-5)
    assert case.grades.tolist() == [0, 2, 0]
    assert case.judged == [2, 1]


def test_selectors_and_costs_of_chunks(
    kept: KeptScores, loaded: dict[str, LoadedRanker], tiny_rankers: dict[str, Path]
) -> None:
    kept.make(0, loaded["maxp"], loaded["firstp"])
    case = kept.case(0, loaded["maxp"], loaded["firstp"])
    assert case is not None
    # Only one chunk holds the word of the question that is rare here.
    assert np.argwhere(case.bm25 == case.bm25.max()).tolist() == [[1, 0]]
    alone = open_ranker(str(tiny_rankers["biencoder"]), window=30, stride=20)
    expected = alone.score(QUESTION.text, [TEXTS[each] for each in QUESTION.candidates])
    best = np.where(case.mask, case.cosine, -np.inf).max(axis=1)
    assert best == pytest.approx([each.score for each in expected], abs=2e-3)
    chunks = open_ranker(str(tiny_rankers["biencoder"]), **WINDOW)
    expected = chunks.score(QUESTION.text, [LONG])
    assert case.cosine_of_chunks[2][case.mask[2]] == pytest.approx(expected[0].chunk_scores, abs=1e-5)
    reader = loaded["maxp"].reader
    query, document = reader.read_query(QUESTION.text), reader.read_document(TEXTS["a"])
    assert case.positions[1].sum() == reader.chunk_input(query, reader.split(document)[0]).tokens
    assert case.positions[2].max() == 20 + len(query) + 3


def test_files_are_made_once_and_a_missing_one_leaves_the_question_out(
    kept: KeptScores, loaded: dict[str, LoadedRanker], tmp_path: Path
) -> None:
    assert kept.case(0, loaded["maxp"], loaded["firstp"]) is None
    kept.make(0, loaded["maxp"], loaded["firstp"])
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    # The selectors, FirstP, MaxP, and the vectors of three documents.
    assert len(files) == 6
    assert kept.case(0, loaded["parade-attn"], loaded["firstp"]) is None
    again = KeptScores(tmp_path, COLLECTION, loaded["maxp"].reader, loaded["biencoder"])
    again.make(0, loaded["parade-attn"], loaded["firstp"])
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    assert len(after) == 7
    assert files.items() <= after.items()
    assert again.case(0, loaded["maxp"], loaded["firstp"]) is not None


def test_a_subset_of_chunks_has_parades_own_score(loaded: dict[str, LoadedRanker]) -> None:
    aggregator, rng = loaded["parade-attn"].aggregator, np.random.default_rng(1)
    vectors = torch.from_numpy(rng.normal(size=(3 * 5, 32))).float()
    mask = rng.random((3, 5)) < 0.6
    mask[:, 0] = True
    with torch.inference_mode():
        values = chunk_values(aggregator, vectors).numpy().reshape(3, 5, 2)
        state = aggregator.interact(
            Features(vectors.view(3, 5, 32)), torch.ones(3, 5, dtype=torch.bool), None
        )
        expected = aggregator.score(state, torch.from_numpy(mask)[None])[0]
    assert attended_score(values, mask) == pytest.approx(expected.tolist(), abs=1e-5)


def test_families_whose_score_is_not_of_chunks_are_refused(tiny_rankers: dict[str, Path]) -> None:
    aggregator = open_ranker(str(tiny_rankers["sump"])).aggregator
    with pytest.raises(ValueError, match="SumP: only MaxP, FirstP and PARADE Attn are replayed"):
        chunk_values(aggregator, torch.zeros(1, 32))


def test_another_tokenizer_is_refused(
    loaded: dict[str, LoadedRanker], own_tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    reader = loaded["maxp"].reader
    other = Reader(reader.spec, own_tokenizer, reader.backbone)
    with pytest.raises(ValueError, match="the bi-encoder has another tokenizer than the rankers"):
        KeptScores(tmp_path, COLLECTION, other, loaded["biencoder"])


def test_chunks_are_divided_among_documents() -> None:
    mask = np.array([[True, False], [True, True]])
    assert padded(np.array([1, 2, 3]), mask).tolist() == [[1, 0], [2, 3]]
    assert padded(np.array([[1, 4], [2, 5], [3, 6]]), mask)[1].tolist() == [[2, 5], [3, 6]]
