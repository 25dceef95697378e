"""A JSON body's values are counted in its bytes, and reading it in parts gives the same result."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import LimitsConfig
from farrank_server.http import json_bodies
from farrank_server.http.dialects.dialect_request import RerankBody
from farrank_server.http.dialects.score import ScoreBody
from farrank_server.http.json_bodies import check_values, decoded
from farrank_server.service.fields import DOCUMENT_ROOM_BYTES, SMALL_BYTES

texts = st.text(max_size=6) | st.sampled_from(['"', "\\", '\\"', '",[{"', "\\\\", "\u2028é\U0001f600"])
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def values_in(tree: Any) -> int:
    """Return how many entries all lists and objects have together. An empty one counts as an entry."""
    if not isinstance(tree, list | dict):
        return 0
    inner = tree.values() if isinstance(tree, dict) else tree
    return max(1, len(tree)) + sum(map(values_in, inner))


@given(trees, st.booleans(), st.integers(1, 9))
def test_values_are_counted_as_they_are(tree: Any, escaped: bool, block: int) -> None:
    body = json.dumps(tree, ensure_ascii=escaped).encode()
    count = values_in(tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bodies, "MAX_FIELDS", 1)
        patch.setattr(json_bodies, "_BLOCK_BYTES", block)
        check_values(body, LimitsConfig(max_documents=max(1, count - 1)))
        if count > 2:
            with pytest.raises(
                InvalidArgument, match=f"^request: has more than {count - 1} values; the limit is 1 for each"
            ):
                check_values(body, LimitsConfig(max_documents=count - 2))


documents = st.lists(
    texts | st.dictionaries(st.sampled_from(("text", "id", "more")), trees, max_size=3), max_size=5
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "query": texts | st.none(),
        "documents": documents | trees,
        "texts": st.lists(texts, max_size=4) | trees,
        "text_2": st.lists(texts, max_size=4) | texts,
        "top_n": st.integers(0, 9),
        "other": trees,
    },
)


@pytest.mark.parametrize("kind", [RerankBody, ScoreBody])
@given(body=bodies)
def test_parts_give_the_whole(kind: type[RerankBody] | type[ScoreBody], body: dict[str, Any]) -> None:
    written = json.dumps(body).encode()

    def outcome() -> object:
        try:
            return msgspec.to_builtins(decoded(written, kind, LimitsConfig()))
        except InvalidArgument as error:
            # If several are wrong, another one may be found first.
            return error.message.partition(": ")[2][:15]

    whole = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bodies, "SMALL_BYTES", 0)
        patch.setattr(json_bodies, "PAUSE_S", 0)
        assert outcome() == whole


LIMITS = LimitsConfig(max_documents=3, max_document_bytes=100_000, max_query_bytes=50_000)
SPACE = b" " * SMALL_BYTES


def rejected() -> Iterator[tuple[bytes, str]]:
    yield (
        b'{"documents": [' + b"{}," * 200,
        "request: has more than 128 values; the limit is 32 for each of max_documents 3",
    )
    yield b'""' * 10_000_000, "request: has more than 128 values"
    yield b'{"a":' * 200, "request: has more than 128 values"
    yield b"[" * 10_000_000, "request: has more than 128 values"
    long = b'"' + b"x" * 400_000 + b'"'
    most = 100_000 + DOCUMENT_ROOM_BYTES
    yield (
        b'{"documents": ["a", %s]}' % long,
        f"documents[1]: has 400002 bytes or more; max_document_bytes 100000 allows at most {most}",
    )
    yield (
        b'{"query": %s}' % long,
        "query: has 400002 bytes or more; max_query_bytes 50000 allows at most 115536",
    )
    yield b'{"unknown": %s}' % long, "unknown: has 400002 bytes or more"
    yield b'{"documents": ["a", "b", 5]}', "documents[2]: is invalid: expected `str | object`"
    yield b'{"documents": 5}', "documents: is invalid"
    yield b"[]", "request: is invalid: expected `object`, got `array`"
    yield b"{", "request: is not JSON"


REJECTED = [pytest.param(body, message, id=message[:40]) for body, message in rejected()]


@pytest.mark.parametrize(("body", "message"), REJECTED)
def test_problems_in_a_large_body_are_named(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decoded(SPACE + body, RerankBody, LIMITS)
    assert str(caught.value).startswith(message)


def test_escapes_are_not_held_against_a_text() -> None:
    text = "é" * 50_000
    body = SPACE + json.dumps({"query": text[:25_000], "documents": [text]}).encode()
    assert decoded(body, RerankBody, LIMITS).documents == [text]
