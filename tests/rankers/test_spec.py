import json
from dataclasses import replace
from typing import Any

import pytest

from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.family import FAMILIES, BiEncoderOptions, CrossEncoderOptions
from farrank_rankers.spec import RankerSpec

SPEC = RankerSpec(
    "biencoder",
    "some/model",
    Chunking("sliding", 20, 10, 100),
    options=BiEncoderOptions(pooling="cls", query_prefix="query: "),
    provenance={"model": "some/model"},
)


@pytest.mark.parametrize("family", FAMILIES)
def test_json_round_trip(family: str) -> None:
    spec = RankerSpec(family, "b", Chunking("first", 7, 7, 70), max_query_tokens=5)
    assert RankerSpec.from_json(spec.to_json()) == spec
    assert hash(spec) == hash(RankerSpec.from_json(spec.to_json()))


def test_json_round_trip_with_options() -> None:
    assert RankerSpec.from_json(SPEC.to_json()) == SPEC
    assert SPEC.plan == "dual"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "maxpp"}, "family is 'maxpp'; it must be one of firstp, "),
        ({"family": None}, "family is None; it must be one of"),
        ({"backbone": ""}, "backbone is ''; it must be a name"),
        ({"max_query_tokens": 0}, "max_query_tokens is 0; it must be at least 1"),
        ({"pad_query_to": 32}, "pad_query_to is 32; it must be none: family biencoder"),
        ({"extra": 1}, "the spec has the unknown key extra; known are family, backbone"),
        ({"chunking": 3}, "chunking is 3; it must be an object"),
        ({"chunking": {"kind": "first", "window": 3}}, "chunking lacks the key max_document_tokens, stride"),
        ({"options": {"pool": "cls"}}, "options has the unknown key pool; known are pooling"),
        ({"options": {"pooling": "max"}}, "pooling is 'max'; it must be one of mean, cls"),
        ({"options": {"normalize": 1}}, "options.normalize is 1; it must be true or false"),
        ({"provenance": {"a": 1}}, "provenance.a is 1; it must be a string"),
        ({"provenance": []}, "provenance is .*object"),
    ],
)
def test_a_bad_key_is_named(change: dict[str, Any], message: str) -> None:
    values = json.loads(SPEC.to_json()) | change
    with pytest.raises(SpecError, match=message):
        RankerSpec.from_json(json.dumps(values))


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SpecError, match="the spec lacks the key backbone, chunking"):
        RankerSpec.from_json('{"family": "maxp"}')


@pytest.mark.parametrize("text", ["", "[]", '"maxp"', "{"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="the text is"):
        RankerSpec.from_json(text)


def test_options_of_another_family_are_refused() -> None:
    with pytest.raises(SpecError, match="family biencoder takes BiEncoderOptions"):
        replace(SPEC, options=CrossEncoderOptions())


def test_padding_must_hold_the_longest_query() -> None:
    with pytest.raises(SpecError, match="pad_query_to is 16; it must be at least 32"):
        RankerSpec("maxp", "b", Chunking("first", 7, 7, 70), pad_query_to=16)
