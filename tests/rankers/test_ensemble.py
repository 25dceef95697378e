"""An ensemble's score is its members' mean in every implementation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank_rankers.chunking import Chunking
from farrank_rankers.ensemble import Ensemble, is_ensemble, save_ensemble
from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from support.ensembles import open_ensemble

QUERY = "neural query"
DOCUMENTS = ["search engine ranks passages of the long document " * 4, "hello world", ""]


@pytest.fixture(scope="module")
def ensemble(make_model: Callable[..., Path]) -> Ensemble:
    """Members with different families, backbones, tokenizers, chunks and plans."""
    return Ensemble(
        {
            "maxp": new_ranker("maxp", make_model("bert"), Chunking("sliding", 16, 10, 64), seed=1).eval(),
            "firstp": new_ranker("firstp", make_model("roberta"), seed=2).eval(),
            "vectors": new_ranker("biencoder", make_model("bert"), seed=3).eval(),
        }
    )


def test_the_score_is_the_mean_and_the_first_member_shows_where(ensemble: Ensemble) -> None:
    each = [ranker.score(QUERY, DOCUMENTS) for ranker in ensemble.members.values()]
    for row, found in enumerate(ensemble.score(QUERY, DOCUMENTS)):
        members = [scores[row] for scores in each]
        assert found.score == pytest.approx(sum(item.score for item in members) / 3, rel=1e-12)
        assert found.chunk_scores == members[0].chunk_scores
        assert found.deciding == members[0].deciding
        assert found.score != members[0].score


def test_the_round_trip_is_exact(ensemble: Ensemble, tmp_path: Path) -> None:
    save_ensemble(ensemble, tmp_path)
    assert is_ensemble(tmp_path)
    assert not is_ensemble(tmp_path / "maxp")
    again = open_ensemble(tmp_path)
    assert list(again.members) == ["maxp", "firstp", "vectors"]
    assert again.version == ensemble.version
    wanted = [(item.score, item.chunk_scores) for item in ensemble.score(QUERY, DOCUMENTS)]
    assert [(item.score, item.chunk_scores) for item in again.score(QUERY, DOCUMENTS)] == wanted


def test_the_version_knows_members_and_their_order(ensemble: Ensemble) -> None:
    turned = Ensemble(dict(reversed(list(ensemble.members.items()))))
    fewer = Ensemble(dict(list(ensemble.members.items())[:2]))
    assert len({ensemble.version, turned.version, fewer.version}) == 3


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"family": "ensemble"}, "members is None; it must be a list"),
        ({"family": "ensemble", "members": ["a"]}, "has 1 names; an ensemble has at least 2"),
        ({"family": "ensemble", "members": ["a", "a"]}, "names a member twice"),
        ({"family": "ensemble", "members": ["a", "../b"]}, "'../b' cannot be a folder's name"),
        ({"family": "ensemble", "members": ["a", "b"], "weights": [1, 2]}, "unknown key weights"),
    ],
)
def test_a_bad_list_is_refused(tmp_path: Path, spec: object, problem: str) -> None:
    (tmp_path / "ranker.json").write_text(json.dumps(spec))
    with pytest.raises(SpecError, match=problem) as error:
        open_ensemble(tmp_path)
    assert "ranker.json" in str(error.value)


def test_ensembles_do_not_nest(ensemble: Ensemble, tmp_path: Path) -> None:
    save_ensemble(ensemble, tmp_path / "inner")
    with pytest.raises(SourceError, match="inner is an ensemble, not a single ranker"):
        open_ranker(tmp_path / "inner")
    spec = {"family": "ensemble", "members": ["inner", "other"]}
    (tmp_path / "ranker.json").write_text(json.dumps(spec))
    with pytest.raises(SpecError, match="member inner is itself an ensemble"):
        open_ensemble(tmp_path)


def test_a_missing_member_is_named(ensemble: Ensemble, tmp_path: Path) -> None:
    save_ensemble(ensemble, tmp_path)
    (tmp_path / "firstp").rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="firstp"):
        open_ensemble(tmp_path)
    with pytest.raises(SourceError, match="nowhere"):
        is_ensemble(tmp_path / "nowhere")
