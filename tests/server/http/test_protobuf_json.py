"""JSON becomes the same message as with protobuf's own mapping, for every field of the contract."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import LimitsConfig
from farrank_server.http import protobuf_json
from farrank_server.http.protobuf_json import message_of_json
from farrank_server.service.fields import SMALL_BYTES
from farrank_server.service.methods import SERVICE

LIMITS = LimitsConfig()
INPUTS = [method.input_type for method in SERVICE.methods]

# Values that the mapping accepts or refuses, whatever the field's type is.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3.0, 1.5, 2**40, "", "x", "3", "2.0", "é\U0001f600", [], [None], [1]),
    *({}, [{}], {"a": 1}, "SCORE_SCALE_SIGMOID", "PRIORITY_BATCH", "NOBODY", 2, 99),
]


def places(kind: Descriptor, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return the path of every message in a request: names, and the index of an entry in a list."""
    yield path
    for field in kind.fields:
        if field.message_type is not None:
            inner = (*path, field.json_name, 1) if field.is_repeated else (*path, field.json_name)
            yield from places(field.message_type, inner)


def kind_at(kind: Descriptor, path: tuple[str | int, ...]) -> Descriptor:
    for name in path:
        if isinstance(name, str):
            by_name = {each.json_name: each.message_type for each in kind.fields}
            kind = by_name[name] or kind
    return kind


def tree_with(path: tuple[str | int, ...], inner: Any) -> Any:
    """Return a tree with a value at a path. An entry of a list comes after an empty one."""
    for name in reversed(path):
        inner = {name: inner} if isinstance(name, str) else [{}, inner]
    return inner


def spelled(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")


def every_field() -> Iterator[Any]:
    for kind in INPUTS:
        for path in places(kind):
            for field in kind_at(kind, path).fields:
                name = f"{kind.name}.{spelled((*path, field.name))}"
                yield pytest.param(GetMessageClass(kind), path, field, id=name)


EVERY_FIELD = list(every_field())
EVERY_PLACE = [
    pytest.param(GetMessageClass(kind), path, id=f"{kind.name}.{spelled(path)}")
    for kind in INPUTS
    for path in places(kind)
]


def read(body: bytes, kind: type[Message]) -> Message | None:
    """Return the message of a body, or None if it is refused."""
    try:
        return message_of_json(body, kind, LIMITS)
    except InvalidArgument:
        return None


def mapped(body: bytes, kind: type[Message]) -> Message | None:
    """Return the message according to protobuf's own mapping."""
    try:
        return json_format.Parse(body, kind())
    except json_format.ParseError:
        return None


@pytest.mark.parametrize(("kind", "path", "field"), EVERY_FIELD)
def test_every_field_is_read_as_protobuf_maps_it(
    kind: type[Message], path: tuple[str | int, ...], field: FieldDescriptor
) -> None:
    taken = []
    for name in {field.json_name, field.name}:
        for value in VALUES:
            if field.message_type is not None and value in ("", []) and not field.is_repeated:
                # The library accidentally accepts these two as an empty message.
                continue
            body = json.dumps(tree_with(path, {name: value})).encode()
            message = read(body, kind)
            assert message == mapped(body, kind), body
            empty = json.dumps(tree_with(path, {})).encode()
            taken.append(message is not None and message != mapped(empty, kind))
    assert any(taken), "no value of this test is taken by the field"


@pytest.mark.parametrize(("kind", "path"), EVERY_PLACE)
def test_an_unknown_field_is_refused_by_its_whole_path(
    kind: type[Message], path: tuple[str | int, ...]
) -> None:
    body = json.dumps(tree_with(path, {"txt": "x"})).encode()
    with pytest.raises(InvalidArgument) as caught:
        message_of_json(body, kind, LIMITS)
    assert str(caught.value).startswith(f"{spelled((*path, 'txt'))}: is not a field of ")


@pytest.mark.parametrize(("kind", "path", "field"), EVERY_FIELD)
def test_a_field_that_comes_twice_is_refused(
    kind: type[Message], path: tuple[str | int, ...], field: FieldDescriptor
) -> None:
    for second in (field.json_name, field.name):
        twice = b'{"%s": null, "%s": null}' % (field.json_name.encode(), second.encode())
        body = json.dumps(tree_with(path, "HERE")).encode().replace(b'"HERE"', twice)
        with pytest.raises(InvalidArgument) as caught:
            message_of_json(body, kind, LIMITS)
        assert str(caught.value) == f"{spelled((*path, second))}: occurs twice"


def test_no_request_has_a_oneof() -> None:
    """The mapping permits only one field of a oneof, but this reader reads fields one by one."""
    for kind in INPUTS:
        for path in places(kind):
            assert all(len(each.fields) == 1 for each in kind_at(kind, path).oneofs)


def test_a_large_body_is_read_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_json, "PIECE_BYTES", 100_000)
    documents = [
        {"id": f"é{n}", "text": f'say "{n}"\n \\ ' * 2000} if n % 3 else {"id": str(n), "index": "docs"}
        for n in range(40)
    ]
    tree = {"query": "river", "documents": documents, "options": {"topN": 3, "priority": "PRIORITY_BATCH"}}
    body = json.dumps(tree).encode()
    assert len(body) > SMALL_BYTES
    assert message_of_json(body, pb.RerankRequest, LIMITS) == json_format.Parse(body, pb.RerankRequest())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            '%s{"documents": [{}, {}, {}, {}]}' % (" " * SMALL_BYTES),
            "documents: has more than 3 entries; max_documents is 3",
        ),
        (
            '{"documents": [{}, {"text": "%s"}]}' % ("x" * 400_000),
            "documents[1]: has 400012 bytes or more; max_document_bytes 100000 allows at most 165536",
        ),
        (
            '{"query": "%s"}' % ("x" * 400_000),
            "query: has 400002 bytes or more; max_query_bytes 50000 allows",
        ),
        (
            '{"options": {"ranker": "%s"}}' % ("x" * 400_000),
            "options: has 400014 bytes or more; max_query_bytes",
        ),
        (
            '{"documents": [%s{}]}' % ("{}," * 40_000),
            "request: has more than 128 values; the limit is 32 for each of",
        ),
        (
            '{"documents": [{"text": "a"}, {"text": "b"}, {"txt": "c"}]}',
            "documents[2].txt: is not a field of",
        ),
    ],
)
def test_values_beyond_limits_are_named(body: str, message: str) -> None:
    limits = LimitsConfig(max_documents=3, max_document_bytes=100_000, max_query_bytes=50_000)
    with pytest.raises(InvalidArgument) as caught:
        message_of_json(body.encode(), pb.RerankRequest, limits)
    assert str(caught.value).startswith(message)
