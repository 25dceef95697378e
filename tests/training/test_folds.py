"""Cross-validation: every query is tested once, by a ranker that has learned from others."""

from pathlib import Path

import pytest

from farrank_training.errors import TrainingError
from farrank_training.folds import divided, folds_of, read_parts
from farrank_trec.errors import InputError

IDS = [f"q{number}" for number in range(11)]


def test_parts_are_even_and_always_the_same() -> None:
    parts = divided(IDS, 4)
    assert sorted(map(len, parts)) == [2, 3, 3, 3]
    assert sorted(query_id for part in parts for query_id in part) == sorted(IDS)
    assert divided(list(reversed(IDS)), 4) == parts
    assert parts != [IDS[start::4] for start in range(4)]


@pytest.mark.parametrize("parts", [2, 12])
def test_too_few_or_too_many_parts(parts: int) -> None:
    with pytest.raises(TrainingError) as caught:
        divided(IDS, parts)
    expected = f"folds is {parts}; it must be at least 3 and at most the 11 judged queries"
    assert str(caught.value) == expected


def test_each_part_is_tested_once_by_a_ranker_that_never_saw_it() -> None:
    parts = divided(IDS, 5)
    folds = folds_of(parts)
    assert [fold.number for fold in folds] == [1, 2, 3, 4, 5]
    assert [fold.test for fold in folds] == [frozenset(part) for part in parts]
    for fold in folds:
        assert fold.training | fold.validation | fold.test == set(IDS)
        assert not (fold.training & fold.validation)
        assert not (fold.training & fold.test)
        assert not fold.validation & fold.test


def test_a_published_division(tmp_path: Path) -> None:
    path = tmp_path / "folds.json"
    path.write_text('[["q1", "q2"], ["q3"], ["q4", "q77"]]')
    assert read_parts(path, IDS) == [["q1", "q2"], ["q3"], ["q4"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: "),
        ('{"a": 1}', "must be a JSON list of lists of query ids, which are strings"),
        ("[[301], [302], [303]]", "must be a JSON list of lists of query ids, which are strings"),
        ('[["q1"], ["q2"]]', "2 parts; there must be at least 3"),
        ('[["q1"], ["q2"], ["q1"]]', "query 'q1' appears twice"),
        ('[["q1"], ["q77"], ["q2"]]', "no query of part 2 is judged"),
    ],
)
def test_a_division_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "folds.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_parts(path, IDS)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_division_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folds\.json: No such file"):
        read_parts(tmp_path / "folds.json", IDS)
