"""A line's fields for first stages: read, or refused with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from farrank_trec import read_documents
from farrank_trec.errors import InputError
from farrank_trec.ranking_fields import RankingFields


def read(folder: Path, *lines: dict[str, Any]) -> list[RankingFields]:
    path = folder / "c.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"d{n}", "text": "x", **line}) + "\n" for n, line in enumerate(lines)),
        encoding="utf-8",
    )
    return [each.ranking for each in read_documents([path], with_ranking=True)]


def test_fields_are_read(tmp_path: Path) -> None:
    full = {"expansions": ["why?", ""], "impacts": {"##s": 1, "fluß": 65_535}, "vector": [1, -0.5]}
    bare = {"expansions": [], "impacts": {}, "vector": [0.0, 1e-3]}
    assert read(tmp_path, full, bare) == [
        RankingFields(("why?", ""), {"##s": 1, "fluß": 65_535}, (1.0, -0.5)),
        RankingFields((), {}, (0.0, 1e-3)),
    ]
    assert read(tmp_path, {}) == [RankingFields(None, None, None)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"expansions": "a text"}, "'expansions' must be a list of strings"),
        ({"expansions": [1]}, "'expansions' must be a list of strings"),
        ({"expansions": ["\ud800"]}, "'expansions' holds half of a surrogate pair"),
        ({"impacts": [["a", 1]]}, "'impacts' must be an object of tokens and their weights"),
        ({"impacts": {"a b": 1}}, "'impacts' has the token 'a b'; it must have no white space"),
        ({"impacts": {"": 1}}, "'impacts' has the token ''"),
        ({"impacts": {"\x01": 1}}, "be printable"),
        ({"impacts": {"a" * 201: 1}}, r"'impacts' has a token of 201 characters \(of UTF-16\); at most 200"),
        ({"impacts": {"😀" * 130: 1}}, "'impacts' has a token of 260 characters"),
        ({"id": "é" * 16_384}, "the id has 32,768 bytes; an index takes at most 32,766"),
        ({"impacts": {"a": 0}}, "weight 0; it must be a whole number between 1 and 65,535"),
        ({"impacts": {"a": 1.5}}, r"weight 1.5; .*round\(weight / 5 \* 256\)"),
        ({"impacts": {"a": True}}, "weight True"),
        ({"impacts": {"a": 65_536}}, "weight 65536"),
        ({"vector": []}, "'vector' must be a list of 1 to 1,024 numbers"),
        ({"vector": [1.0] * 1025}, "'vector' must be a list of 1 to 1,024 numbers"),
        ({"vector": ["1"]}, "'vector' holds '1'; it must hold finite numbers"),
        ({"vector": [float("nan")]}, "'vector' holds nan"),
        ({"vector": [0, 0.0]}, "'vector' holds only zeros"),
        (
            {"vector": [1.0, -1e39]},
            "the largest number of 'vector' is 1e\\+39; it must be between 1e-15 and 1e\\+15",
        ),
        ({"vector": [1e-30, 0.0]}, "the largest number of 'vector' is 1e-30"),
        ({"vector": [10**400]}, "the largest number of 'vector' is a number of 401 digits"),
    ],
)
def test_a_bad_field_is_refused_with_its_line(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"c\.jsonl:1: .*{message}"):
        read(tmp_path, line)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"impacts": {"a": 1}}, {}, r"c.jsonl:2: has no 'impacts', but .*c.jsonl:1 has one"),
        ({}, {"vector": [1.0]}, r"c.jsonl:2: has 'vector', but .*c.jsonl:1 has none"),
        ({"expansions": []}, {}, r"c.jsonl:2: has no 'expansions', but .*c.jsonl:1 has one"),
        ({"vector": [1.0]}, {"vector": [1.0, 2.0]}, r"c.jsonl:2: 'vector' has 2 numbers; that of .*:1 has 1"),
    ],
)
def test_lines_have_the_same_fields(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, first, second)
