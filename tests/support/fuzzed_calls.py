"""Generated calls: every field of every method, within and beyond its limits, at both endpoints."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from farrank.v1 import rerank_pb2 as pb

GRPC, HTTP = "grpc", "http"
SERVICE = "/farrank.v1.RerankService/"
PATHS = (
    *("/rerank", "/v1/rerank", "/v2/rerank", "/infinity/rerank", "/voyage/rerank", "/", "/invocations"),
    *("/score", "/v1/score"),
)
OTHER_PATHS = (
    "/health",
    "/info",
    "/openapi.json",
    "/nowhere",
    "/farrank.v1.RerankService/Nothing",
    "/%00",
    "//",
)


@dataclass(frozen=True)
class FuzzedCall:
    """The bytes of a call. `deadline_s` is gRPC's deadline or that of Connect-Timeout-Ms; None sends none.

    The caller cancels after `leaves_after_s`. `documents` is the number of documents in the answer to a valid
    call, or None if it is unknown.
    """

    endpoint: str
    path: str
    body: bytes
    headers: Sequence[tuple[str, str]] = ()
    verb: str = "POST"
    deadline_s: float | None = None
    leaves_after_s: float | None = None
    documents: int | None = field(default=None, compare=False)


# Characters that tokenizers, JSON and terminals treat specially.
_ODD = (
    "\x00", "\n", "\r\n", "\t", "\x1b[31m", "\u200b", "\u200d", "\u202e", "\ufeff", "\u0301", "\u0fda",
    "\ufffd",
    "\U0001f469\u200d\U0001f4bb", "\U00020000",
    "ﷺ", "ß", "İ", "ŉ", "中", "ไทย", "한", "[SEP]", "[CLS]", "[PAD]", "</s>",
    "<s>", "▁", "##a", "a" * 150, "!" * 40, "\\u0000", '"', "{}", "%s", "../",
)  # fmt: skip
_pieces = st.one_of(
    st.sampled_from(_ODD),
    st.text(max_size=20),
    st.sampled_from(("the river rises", "a ship sails over the sea", "bread is baked from flour")),
)
_words = st.lists(_pieces, max_size=6).map(" ".join)
# Only few texts are long: each costs as much as hundreds of others.
_repeated = st.tuples(_words, st.sampled_from((1, 1, 1, 1, 2, 7, 40, 400))).map(
    lambda made: made[0] * made[1]
)
texts = st.one_of(_words, _repeated)
_names = st.one_of(st.sampled_from(("", "maxp", "biencoder", "parade-attn", "both")), st.text(max_size=8))
_indexes = st.one_of(st.sampled_from(("", "things", "same")), st.text(max_size=8))
_ids = st.one_of(st.sampled_from(("", "rivers", "ships", "bread")), st.text(max_size=8))
_counts = st.one_of(
    st.integers(0, 5), st.sampled_from((-1, 2**31 - 1, -(2**31), 1000)), st.integers(-(2**31), 2**31 - 1)
)
_in_order = st.integers(1, 8)


@st.composite
def _depths(draw: st.DrawFn, *, tame: bool) -> pb.Depth:
    if tame:
        budgets: list[dict[str, Any]] = [
            {},
            {"chunks": 1.5},
            {"chunks": 10_000},
            {"tokens": 1},
            {"milliseconds": 5},
        ]
        return pb.Depth(mode=pb.DEPTH_MODE_ADAPTIVE, **draw(st.sampled_from(budgets)))
    mode: Any = draw(st.sampled_from((0, 1, 2, 2, 2, 99)))
    depth = pb.Depth(mode=mode)
    if draw(st.booleans()):
        depth.chunks = draw(st.one_of(st.floats(), st.floats(1, 50)))
    for name in draw(st.lists(st.sampled_from(("tokens", "milliseconds")), max_size=1)):
        setattr(depth, name, draw(st.one_of(st.integers(0, 5000), st.integers(0, 2**32 - 1))))
    return depth


@st.composite
def _options(draw: st.DrawFn, *, tame: bool) -> pb.RerankOptions:
    counts = _in_order if tame else _counts
    # Also numbers that the enumeration does not have.
    scale: Any = draw(st.sampled_from((0, 1, 2) if tame else (0, 1, 2, 3, 99)))
    evidence: Any = draw(st.sampled_from((0, 1, 2) if tame else (0, 1, 2, 3, 99)))
    options = pb.RerankOptions(
        ranker=draw(st.sampled_from(("", "maxp", "biencoder", "parade-attn", "both")) if tame else _names),
        return_texts=draw(st.booleans()),
        return_chunk_scores=draw(st.booleans()),
        count_tokens_cut=draw(st.booleans()),
        score_scale=scale,
        evidence=evidence,
        context_tokens=draw(
            st.sampled_from((0, 0, 1, 50, 65_536) if tame else (0, -1, 3, 65_537, 2**31 - 1))
        ),
    )
    if draw(st.booleans()):
        options.max_chunks = draw(counts)
    if not tame and draw(st.booleans()):
        options.top_n = draw(counts)
    if draw(st.integers(0, 3)) == 0:
        options.depth.CopyFrom(draw(_depths(tame=tame)))
    return options


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any, int | None]:
    """A method, its request, and the number of results if the request is valid."""
    tame = draw(st.integers(0, 3)) > 0
    kind = draw(st.sampled_from(("Rerank", "Rerank", "Rerank", "SearchAndRerank", "ListRankers")))
    if kind == "ListRankers":
        return kind, pb.ListRankersRequest(), None
    options = draw(_options(tame=tame)) if draw(st.booleans()) else pb.RerankOptions()
    query = f"river {draw(_words)}" if tame else draw(texts)
    if kind == "SearchAndRerank":
        search = pb.SearchAndRerankRequest(query=query, options=options)
        search.index = draw(st.sampled_from(("things", "same")) if tame else _indexes)
        if draw(st.booleans()):
            search.k = draw(_in_order if tame else _counts)
        return kind, search, None
    request = pb.RerankRequest(query=query, options=options)
    for number in range(draw(st.integers(1, 6) if tame else st.sampled_from((0, 1, 2, 5, 41, 45)))):
        document = request.documents.add(id=f"{number}" if tame else draw(_ids), text=draw(texts))
        if not tame and draw(st.integers(0, 5)) == 0:
            document.index = draw(_indexes)
    return kind, request, len(request.documents) if tame else None


@st.composite
def _damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """Cut, double or flip a body, or replace it by bytes that are no message."""
    how = draw(st.sampled_from(("cut", "flip", "insert", "double", "noise")))
    if how == "noise" or not body:
        return draw(st.binary(max_size=200))
    place = draw(st.integers(0, len(body) - 1))
    if how == "cut":
        return body[:place]
    if how == "flip":
        return body[:place] + bytes([body[place] ^ (1 << draw(st.integers(0, 7)))]) + body[place + 1 :]
    if how == "insert":
        return body[:place] + draw(st.binary(min_size=1, max_size=8)) + body[place:]
    return body * draw(st.integers(2, 4))


# JSON values, for places where another type is expected.
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def _dialect(draw: st.DrawFn) -> tuple[str, Any]:
    """A body as clients of other rerankers send it, with some wrong values."""
    path = draw(st.sampled_from(PATHS))
    some = draw(st.lists(texts, min_size=1, max_size=5))
    body: dict[str, Any] = {"query": f"river {draw(_words)}", "documents": some}
    if path in ("/", "/invocations"):
        body = {"query": body["query"], "texts": some}
    if path.endswith("score"):
        body = {"text_1": body["query"], "text_2": some}
    extras = {
        "model": st.sampled_from(("maxp", "rerank-v3.5", "", "nothing")),
        "top_n": _counts,
        "top_k": _counts,
        "return_documents": st.booleans(),
        "raw_scores": st.booleans(),
        "truncate": st.booleans(),
        "max_tokens_per_doc": _counts,
        "rank_fields": st.lists(st.text(max_size=4), max_size=2),
    }
    for name in draw(st.lists(st.sampled_from(sorted(extras)), max_size=3, unique=True)):
        body[name] = draw(extras[name])
    if draw(st.integers(0, 2)) == 0:
        body[draw(st.sampled_from([*body, "unknown", ""]))] = draw(_json)
    return path, body


_header = st.sampled_from(
    (
        ("Content-Type", "text/plain"),
        ("Content-Type", "application/json; charset=utf-16"),
        ("Content-Encoding", "br"),
        ("Connect-Timeout-Ms", "-1"),
        ("Connect-Timeout-Ms", "99999999999"),
        ("Connect-Protocol-Version", "2"),
        ("Authorization", "Bearer x"),
        ("Accept-Encoding", "gzip"),
    )
)


@st.composite
def calls(draw: st.DrawFn) -> FuzzedCall:
    """One call at either endpoint."""
    deadline_s = draw(st.sampled_from((None, None, 5.0, 0.5, 0.05, 0.002, 0.0)))
    leaves_after_s = draw(st.sampled_from((None, None, None, None, 0.0, 0.002, 0.02, 0.1)))
    kind, request, documents = draw(requests())
    body = request.SerializeToString()
    damages = draw(st.integers(0, 5)) == 0
    if damages:
        documents = None
    if draw(st.booleans()):
        body = draw(_damaged(body)) if damages else body
        return FuzzedCall(GRPC, SERVICE + kind, body, (), "POST", deadline_s, leaves_after_s, documents)
    path, headers, verb = SERVICE + kind, [("Content-Type", "application/proto")], "POST"
    of_json = draw(st.sampled_from(("", "connect", "dialect")))
    if of_json == "dialect":
        path, values = draw(_dialect())
        headers, body, documents = [("Content-Type", "application/json")], json.dumps(values).encode(), None
    elif of_json == "connect":
        names = {each.name for each in request.DESCRIPTOR.fields}
        values = {name: _plain(getattr(request, name)) for name in names if kind != "ListRankers"}
        headers, body = [("Content-Type", "application/json")], json.dumps(values).encode()
        documents = None
    if damages:
        body = draw(_damaged(body))
    if draw(st.integers(0, 9)) == 0:
        headers.append(draw(_header))
        documents = None
    if draw(st.integers(0, 9)) == 0:
        headers.append(("Content-Encoding", "gzip"))
        body = body if draw(st.integers(0, 3)) == 0 else gzip.compress(body)
    if draw(st.integers(0, 19)) == 0:
        path, verb = draw(st.sampled_from(OTHER_PATHS)), draw(st.sampled_from(("GET", "POST", "PUT", "HEAD")))
        documents = None
    if deadline_s is not None:
        headers.append(("Connect-Timeout-Ms", str(int(deadline_s * 1000))))
    return FuzzedCall(HTTP, path, body, tuple(headers), verb, deadline_s, leaves_after_s, documents)


def _plain(value: Any) -> Any:
    """Convert a message's field to a value that json can write."""
    if isinstance(value, pb.RerankOptions | pb.Depth):
        return {name.name: _plain(got) for name, got in value.ListFields()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, str | int | bool | float):
        return value
    return [{name.name: got for name, got in each.ListFields()} for each in value]
