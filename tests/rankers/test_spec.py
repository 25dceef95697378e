import json
from dataclasses import replace
from typing import Any

import pytest

from farrank_rankers.calibration import Calibration
from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.family import FAMILIES, BiEncoderOptions, CrossEncoderOptions, Options, ParadeRandOptions
from farrank_rankers.spec import COSINE_CALIBRATION, RankerSpec

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
        ({"calibration": {"scale": 0.0}}, "calibration.scale is 0.0; it must be above 0"),
        ({"calibration": {"scale": -1.0}}, "calibration.scale is -1.0; it must be above 0"),
        ({"calibration": {"slope": 1.0}}, "slope"),
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
def test_other_json_than_an_object_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="the text is"):
        RankerSpec.from_json(text)


def test_options_of_another_family_are_refused() -> None:
    with pytest.raises(SpecError, match="family biencoder takes BiEncoderOptions"):
        replace(SPEC, options=CrossEncoderOptions())


def test_padding_must_hold_the_longest_query() -> None:
    with pytest.raises(SpecError, match="pad_query_to is 16; it must be at least 32"):
        RankerSpec("maxp", "b", Chunking("first", 7, 7, 70), pad_query_to=16)


def test_a_calibration_is_kept_and_what_has_none_is_written_as_ever() -> None:
    own = Calibration(scale=2.5, offset=-1.0)
    assert RankerSpec.from_json(replace(SPEC, calibration=own).to_json()).calibration == own
    assert "calibration" not in json.loads(SPEC.to_json())


def test_the_families_own_calibrations() -> None:
    # 100 tokens in windows of 20, each 10 after the last.
    chunking, chunks = SPEC.chunking, 9
    maxp = RankerSpec("maxp", "b", chunking)
    assert maxp.document_calibration == maxp.chunk_calibration == Calibration(1.0, 0.0)
    assert SPEC.document_calibration == SPEC.chunk_calibration == COSINE_CALIBRATION
    dot = replace(SPEC, options=BiEncoderOptions(normalize=False))
    assert dot.document_calibration == Calibration(1.0, 0.0)
    for summed in (
        RankerSpec("sump", "b", chunking),
        RankerSpec("cross-encoder", "b", chunking, options=CrossEncoderOptions(aggregation="sum")),
    ):
        assert summed.document_calibration == Calibration(1 / chunks, 0.0)
        assert summed.chunk_calibration == Calibration(1.0, 0.0)
        own = replace(summed, calibration=Calibration(0.5, 2.0))
        assert (own.document_calibration, own.chunk_calibration) == (
            Calibration(0.5, 2.0),
            Calibration(0.5 * chunks, 2.0),
        )


@pytest.mark.parametrize("raw", [-1e6, -800.0, -1.0, 0.0, 3.0, 800.0, 1e6])
def test_a_calibrated_score_lies_between_0_and_1_however_large(raw: float) -> None:
    calibration = Calibration(scale=12.0, offset=-5.0)
    assert 0 <= calibration.apply(raw) <= 1
    assert calibration.apply(raw) <= calibration.apply(raw + 1)


def test_a_transformer_over_chunks_reads_as_many_as_it_has_places_for() -> None:
    def spec(family: str, tokens: int = WHOLE_DOCUMENT, options: Options | None = None) -> RankerSpec:
        return RankerSpec(family, "b", Chunking("sliding", 150, 100, tokens), options=options)  # type: ignore[arg-type]

    assert spec("maxp").most_chunks() is None
    assert spec("maxp").most_chunks(3) == 3
    assert spec("maxp").readable_tokens() == WHOLE_DOCUMENT
    assert spec("parade-transf-rand", 1431).most_chunks() == 14
    assert spec("parade-transf-rand", 1431).most_chunks(3) == 3
    assert spec("parade-transf-rand", 1431).most_chunks(30) == 14
    whole = spec("parade-transf-rand")
    assert (whole.most_chunks(), whole.readable_tokens()) == (509, 508 * 100 + 150)
    # The transformer also reads the query's 32 vectors, and a separator after them.
    assert spec("parade-transf-pretr-q").most_chunks() == 509 - 32 - 1
    trained = spec("parade-transf-rand", options=ParadeRandOptions(trained_chunks=16))
    assert (trained.most_chunks(), trained.readable_tokens(2)) == (16, 250)
    assert RankerSpec.from_json(trained.to_json()) == trained
    assert "trained_chunks" not in whole.to_json()  # versions of earlier rankers are hashes of this text
