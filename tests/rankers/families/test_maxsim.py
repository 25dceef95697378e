"""Multi-vector models of every layout have sentence-transformers' scores, and read long documents whole."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from farrank_rankers.aggregate import Explanation
from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.families.maxsim import MaxSim
from farrank_rankers.family import HeadLayer, MaxSimOptions
from farrank_rankers.features import Features
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.spec import RankerSpec
from farrank_rankers.token_vectors import NOTHING_TO_COMPARE
from farrank_rankers.tokens import Role
from support.multi_vector_models import (
    DOCUMENTS,
    QUERY,
    save_backbone,
    save_hybrid,
    save_pylate,
    save_sentence_transformers,
    save_stanford,
)

# Earlier releases have no multi-vector models.
needs_6 = pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)
EXACT: dict[str, Any] = {"rel": 0, "abs": 1e-5}
SENTENCE = "the long document ranks chunks of passages by a query and its tokens while windows slide over "
LONG = SENTENCE * 9
QUERIES = (QUERY, "hello", SENTENCE * 2)
FIXED = {"strategy": "fixed", "attend": False, "length": 32}
MARKED = {"query": "[Q] ", "document": "[D] "}
PYLATE: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 60,
}

Save = Callable[[Path, Path], Path]
MODELS: dict[str, tuple[str, Save]] = {
    "texts as markers": (
        "bert",
        lambda base, to: save_sentence_transformers(
            base, to, document_length=40, expansion=FIXED, prompts=MARKED
        ),
    ),
    "attended, at least 16": (
        "bert",
        lambda base, to: save_sentence_transformers(
            base,
            to,
            expansion={"strategy": "min", "attend": True, "length": 16, "token": "[SEP]"},
            prompts={"query": "search: ", "document": ""},
            activation=nn.Tanh(),
            bias=True,
        ),
    ),
    "plain, of means": (
        "bert",
        lambda base, to: save_sentence_transformers(
            base, to, dense=False, normalize=False, skiplist=[], similarity_fn_name="meanmaxsim"
        ),
    ),
    "cut queries": (
        "modernbert",
        lambda base, to: save_sentence_transformers(
            base, to, query_length=20, document_length=50, prompts={"query": "query: ", "passage": "text: "}
        ),
    ),
    "expanded ModernBERT": (
        "modernbert",
        lambda base, to: save_sentence_transformers(base, to, expansion=FIXED, document_length=50),
    ),
    "residual layers": (
        "bert",
        lambda base, to: save_sentence_transformers(base, to, residual=True, activation=nn.GELU(), bias=True),
    ),
    "DistilBERT": ("distilbert", lambda base, to: save_sentence_transformers(base, to, expansion=FIXED)),
    "RoBERTa": (
        "roberta",
        lambda base, to: save_sentence_transformers(
            base, to, expansion=FIXED, document_length=60, prompts={"query": "query: ", "document": "text: "}
        ),
    ),
    "PyLate": ("bert", lambda base, to: save_pylate(base, to, ("[Q] ", "[D] "), **PYLATE)),
    "PyLate, attended": (
        "modernbert",
        lambda base, to: save_pylate(base, to, ("[Q]", "[D]"), attend_to_expansion_tokens=True, **PYLATE),
    ),
    "PyLate without expansion": (
        "bert",
        lambda base, to: save_pylate(
            base,
            to,
            do_query_expansion=False,
            skiplist_words=["(", "the"],
            prompts={"query": "rank "},
            **PYLATE,
        ),
    ),
    "Stanford": (
        "bert",
        lambda base, to: save_stanford(
            base, to, query_token_id="[unused0]", doc_token_id="[unused1]", query_maxlen=24, doc_maxlen=50
        ),
    ),
    "Stanford without metadata": ("bert", save_stanford),
    "Stanford, attended": (
        "bert",
        lambda base, to: save_stanford(base, to, attend_to_mask_tokens=True, mask_punctuation=False),
    ),
}


def make(tmp_path: Path, name: str) -> Path:
    model_type, save = MODELS[name]
    return save(save_backbone(tmp_path / "base", model_type), tmp_path / "saved")


def library(folder: Path) -> Any:
    from sentence_transformers import MultiVectorEncoder

    return MultiVectorEncoder(str(folder), device="cpu")


def expected(model: Any, query: str, documents: list[str]) -> list[float]:
    asked, vectors = model.encode_query([query]), model.encode_document(documents)
    found: list[float] = model.similarity(asked, vectors)[0].tolist()
    return found


def scores(source: Path, query: str, documents: list[str], **overrides: Any) -> list[float]:
    return [each.score for each in open_ranker(source, **overrides).score(query, documents)]


@needs_6
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_the_librarys(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path, name)
    model, ranker = library(folder), open_ranker(folder)
    for query in QUERIES:
        reference = expected(model, query, DOCUMENTS)
        assert max(reference) - min(reference) > 0.05
        found = [each.score for each in ranker.score(query, DOCUMENTS)]
        assert found == pytest.approx(reference, **EXACT)


@needs_6
def test_stanfords_weights_with_pylates_modules_are_a_colbert(tmp_path: Path) -> None:
    """sentence-transformers takes neither mask nor norm nor expansion from such a folder without a type."""
    base = save_backbone(tmp_path / "base")
    markers = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    folder = save_hybrid(base, tmp_path / "hybrid", document_length=50, **markers)
    stanford = save_stanford(base, tmp_path / "stanford", query_maxlen=32, doc_maxlen=50)
    reference = expected(library(stanford), QUERY, DOCUMENTS)
    assert scores(folder, QUERY, DOCUMENTS) == pytest.approx(reference, **EXACT)


@needs_6
@pytest.mark.parametrize("name", ["texts as markers", "PyLate", "Stanford"])
def test_long_documents_are_read_in_windows(tmp_path: Path, name: str) -> None:
    """Each window is encoded by the library as a document of its own; its tokens are whole words."""
    folder = make(tmp_path, name)
    model, ranker = library(folder), open_ranker(folder)
    (read,) = ranker.score(QUERY, [LONG])
    assert len(read.chunks) > 2
    assert read.chunks[-1].end == len(LONG.rstrip())
    windows = [LONG[chunk.start : chunk.end] for chunk in read.chunks]
    asked, vectors = model.encode_query([QUERY]), model.encode_document(windows)
    (whole,) = model.similarity(asked, [torch.cat(vectors)])[0].tolist()
    each = model.similarity(asked, vectors)[0].tolist()
    assert read.score == pytest.approx(whole, **EXACT)
    assert list(read.chunk_scores) == pytest.approx(each, **EXACT)
    assert read.score > max(each) + 0.01
    assert scores(folder, QUERY, [LONG], family="maxp") == pytest.approx([max(each)], **EXACT)
    assert scores(folder, QUERY, [LONG], family="firstp") == pytest.approx([each[0]], **EXACT)


@needs_6
def test_a_saved_ranker_has_the_same_scores(tmp_path: Path) -> None:
    ranker = open_ranker(make(tmp_path, "Stanford"))
    save_ranker(ranker, tmp_path / "artifact")
    again = open_ranker(tmp_path / "artifact")
    assert again.version == ranker.version
    found = [each.score for each in again.score(QUERY, DOCUMENTS)]
    assert found == [each.score for each in ranker.score(QUERY, DOCUMENTS)]


def test_other_families_are_refused(tmp_path: Path) -> None:
    folder = save_stanford(save_backbone(tmp_path / "base"), tmp_path / "saved")
    with pytest.raises(SpecError, match="must be one of maxsim, maxp, firstp"):
        open_reader(folder, family="sump")


def test_markers_go_in_by_id_and_punctuation_is_skipped(tmp_path: Path) -> None:
    reader = open_reader(save_stanford(save_backbone(tmp_path / "base"), tmp_path / "saved", query_maxlen=12))
    find = reader.tokenizer.tokenizer.token_to_id
    query = reader.query_input(reader.read_query("hello world"))
    names = ["[CLS]", "[unused0]", "hello", "world", "[SEP]", *["[MASK]"] * 7]
    assert query.input_ids.tolist() == list(map(find, names))
    assert query.roles.tolist() == [
        *(Role.SPECIAL, Role.SPECIAL, Role.QUERY, Role.QUERY, Role.SPECIAL),
        *[Role.EXPANSION] * 7,
    ]
    (chunk,) = reader.split(reader.read_document("hello, world."))
    names = ["[CLS]", "[unused1]", "hello", ",", "world", ".", "[SEP]"]
    framed = reader.chunk_input(None, chunk)
    assert framed.input_ids.tolist() == list(map(find, names))
    own = [Role.DOCUMENT, Role.SKIPPED, Role.DOCUMENT, Role.SKIPPED]
    assert framed.roles.tolist() == [Role.SPECIAL, Role.SPECIAL, *own, Role.SPECIAL]


def test_options_are_checked() -> None:
    with pytest.raises(SpecError, match="expansion_token is none"):
        MaxSimOptions(expand_to=32)
    with pytest.raises(SpecError, match="skipped is -1; it must be at least 0"):
        MaxSimOptions(skipped=(-1,))
    with pytest.raises(SpecError, match="aggregation is 'sum'; it must be one of union, max, first"):
        MaxSimOptions(aggregation="sum")  # type: ignore[arg-type]


def explained(features: Features, mask: torch.Tensor, query: Features, **given: Any) -> Explanation:
    options = MaxSimOptions(head=(HeadLayer("dense", 3),), **given)
    spec = RankerSpec("maxsim", "-", Chunking("disjoint", 4, 4, 100), options=options)
    return MaxSim(spec, {}).explain(features, mask, query)


def test_what_is_not_compared_is_never_read() -> None:
    query = Features(torch.tensor([[[1.0, 0, 0], [0, 1, 0], [torch.nan] * 3]]), torch.tensor([[1, 4, 0]]))
    vectors = torch.full((1, 3, 2, 3), torch.nan)
    vectors[0, 0, 0], vectors[0, 1, 1] = torch.tensor([-0.5, -0.25, 0]), torch.tensor([-0.75, 0.5, 0])
    vectors[0, 0, 1] = 9.0
    features = Features(vectors, torch.tensor([[[3, 5], [0, 1], [3, 3]]]))
    mask = torch.tensor([[True, True, False]])
    union = explained(features, mask, query)
    assert union.scores.tolist() == [0.0]  # -0.5 and 0.5
    assert union.chunk_scores.tolist() == [[-0.75, -0.25, -torch.inf]]
    assert explained(features, mask, query, aggregation="max").scores.tolist() == [-0.25]
    first = explained(features, mask, query, aggregation="first", mean=True)
    assert first.scores.tolist() == [-0.375]
    assert first.chunk_scores.tolist() == [[-0.375, -torch.inf, -torch.inf]]


def test_a_document_without_a_compared_token_is_last() -> None:
    query = Features(torch.ones(1, 2, 3), torch.tensor([[2, 2]]))
    skipped = Features(torch.ones(1, 1, 2, 3), torch.tensor([[[5, 0]]]))
    nothing = explained(skipped, torch.tensor([[True]]), query)
    assert nothing.scores.tolist() == [NOTHING_TO_COMPARE]
