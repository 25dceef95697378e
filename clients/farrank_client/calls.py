"""The calls of the service as values: method, request, and a function that reads the response.

Both clients build their calls here; they differ only in how they send them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, Generic, Literal, TypedDict, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from farrank.v1 import rerank_pb2 as pb
from farrank_client.catalog import Catalog
from farrank_client.errors import InvalidArgument, Unavailable
from farrank_client.ranking import Priority, Ranking, ScoreScale

Response = TypeVar("Response", bound=Message)
Answer = TypeVar("Answer")

SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"].full_name


@dataclass(frozen=True, slots=True)
class Document:
    """One candidate: an id that is unique within the call, and the whole text.

    With `index` the text stays empty: the server's index of that name has the document under this id.
    """

    id: str
    text: str = ""
    index: str = ""


# Plain strings are sent without an id; their position identifies them.
DocumentLike = str | Document | tuple[str, str] | Mapping[str, str]
Documents = Sequence[DocumentLike] | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AdaptiveDepth:
    """Read the most promising chunks of whole documents, in rounds, within a budget: at most one of these.

    `chunks` is the mean number of chunks to read of a document, from 1 to 10,000; `tokens` bounds the tokens
    of the call's encoder inputs; `milliseconds` is the time from the call's arrival, after which the last
    finished round is the answer. Without any, the ranker's plan counts: by default 1 chunk of each document
    and 3 more of the best 30% if the ranker takes the maximum over chunks, or else 2 of each. The server
    refuses other values, and rankers that cannot do this.
    """

    chunks: float | None = None
    tokens: int | None = None
    milliseconds: int | None = None


class RerankOptions(TypedDict, total=False):
    """Options of both calls; None, or an option left out, means the server's default.

    `ranker` may ask for a loaded version, by the first characters of its hash or by its role: "mine@3f1c",
    "mine@canary".
    All documents are scored: `top_n` limits the results, `max_chunks` the chunks read of each document.
    Scores are the ranker's own, for a cross-encoder logits; `score_scale=ScoreScale.SIGMOID` maps them to 0
    to 1. `count_tokens_cut` makes `Result.tokens_cut` exact, but the server then tokenizes documents to their
    end. With `priority=Priority.BATCH` a call waits for interactive ones, and so needs a longer deadline.
    `depth` is how much is read of each document: "all" that the ranker's limits allow, "adaptive", or an
    `AdaptiveDepth` with a budget. With `comparable_scores` the results may be sorted by score: rounds of the
    best documents alone are left out, unless the ranker takes the maximum over chunks. `instruction` is the
    task in the prompt of a ranker that takes one; the server refuses it for others. `return_token_matches`
    asks a multi-vector ranker which token each of the query's tokens found; others refuse it. With
    `evidence="sentences"`, the first `evidence_documents` results (10) have their best `Result.sentences`.
    `context_tokens` packs the evidence of all results into that number of tokens (`Ranking.context`).
    """

    ranker: str | None
    top_n: int | None
    max_chunks: int | None
    return_texts: bool
    return_chunk_scores: bool
    return_token_matches: bool
    score_scale: ScoreScale | None
    priority: Priority | None
    count_tokens_cut: bool
    depth: Literal["all", "adaptive"] | AdaptiveDepth | None
    comparable_scores: bool
    instruction: str | None
    evidence: Literal["chunks", "sentences"] | None
    evidence_documents: int | None
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[Response, Answer]):
    """One unary call: full method name, request, response type and the function that reads the response."""

    method: str
    request: Message
    response_type: type[Response]
    read: Callable[[Response], Answer]


def rerank(query: str, documents: Documents, options: RerankOptions) -> UnaryCall[pb.RerankResponse, Ranking]:
    """Rerank the caller's documents.

    Raises: TypeError, naming the position, for a value that is not a document; InvalidArgument for a number
    that its field cannot hold.
    """
    request = pb.RerankRequest(
        query=query, documents=documents_to_pb(documents), options=_options_to_pb(options)
    )
    return UnaryCall(f"/{SERVICE}/Rerank", request, pb.RerankResponse, Ranking.from_pb)


def search_and_rerank(
    query: str, index: str | None, k: int | None, options: RerankOptions
) -> UnaryCall[pb.SearchAndRerankResponse, Ranking]:
    """Rerank the documents that an index of the server finds.

    Raises: InvalidArgument for a number that its field cannot hold.
    """
    _check_numbers(pb.SearchAndRerankRequest, "", {"k": k})
    request = pb.SearchAndRerankRequest(query=query, index=index, k=k, options=_options_to_pb(options))
    return UnaryCall(f"/{SERVICE}/SearchAndRerank", request, pb.SearchAndRerankResponse, Ranking.from_pb)


LIST_RANKERS = UnaryCall(
    f"/{SERVICE}/ListRankers", pb.ListRankersRequest(), pb.ListRankersResponse, Catalog.from_pb
)


def _options_to_pb(options: RerankOptions) -> pb.RerankOptions:
    """Put the options on the wire; None leaves a field to the server's default.

    Raises: TypeError for an unknown option or depth; InvalidArgument for a number that its field cannot hold.
    """
    known = RerankOptions.__annotations__
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"there is no option {', '.join(unknown)}; known are: {', '.join(known)}")
    values: dict[str, Any] = {**options}
    if scale := options.get("score_scale"):
        values["score_scale"] = scale.value
    if priority := options.get("priority"):
        values["priority"] = priority.value
    if (depth := options.get("depth")) is not None:
        values["depth"] = _depth_to_pb(depth)
    if (evidence := options.get("evidence")) is not None:
        if evidence not in _EVIDENCE:
            raise TypeError(f"evidence: must be 'chunks' or 'sentences'; it is {evidence!r:.100}")
        values["evidence"] = _EVIDENCE[evidence]
    _check_numbers(pb.RerankOptions, "options.", values)
    return pb.RerankOptions(**values)


_EVIDENCE = {"chunks": pb.EVIDENCE_UNIT_CHUNKS, "sentences": pb.EVIDENCE_UNIT_SENTENCES}


def _depth_to_pb(depth: object) -> pb.Depth:
    match depth:
        case "all":
            return pb.Depth(mode=pb.DEPTH_MODE_ALL)
        case "adaptive":
            return pb.Depth(mode=pb.DEPTH_MODE_ADAPTIVE)
        case AdaptiveDepth():
            budget = asdict(depth)
            _check_numbers(pb.Depth, "options.depth.", budget)
            return pb.Depth(mode=pb.DEPTH_MODE_ADAPTIVE, **budget)
        case _:
            raise TypeError(f"depth: must be 'all', 'adaptive' or an AdaptiveDepth; it is {depth!r:.100}")


# The least and the greatest number of each type of field.
_HELD = {FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1)}


def _check_numbers(kind: type[Message], where: str, values: Mapping[str, Any]) -> None:
    """Check the numbers of a message, which the server cannot do: they would not reach it.

    Raises: InvalidArgument for one that its field cannot hold.
    """
    for name, value in values.items():
        held = _HELD.get(kind.DESCRIPTOR.fields_by_name[name].type)
        if held is None or not isinstance(value, Integral):
            continue
        number, (least, most) = int(value), held
        if number > most:
            raise InvalidArgument(f"{where}{name}: is {number}; it must be at most {most}")
        if number < least:
            raise InvalidArgument(f"{where}{name}: is {number}; it must be at least {least}")


def documents_to_pb(documents: Documents) -> list[pb.Document]:
    """Put documents on the wire. A single mapping maps ids to texts.

    Raises: TypeError for one string instead of a sequence, and for a value that is not a document, whose
    position it names.
    """
    if isinstance(documents, str):
        raise TypeError("documents: a sequence of documents is needed, not one string")
    given = documents.items() if isinstance(documents, Mapping) else documents
    return [_document_to_pb(place, document) for place, document in enumerate(given)]


def _document_to_pb(place: int, document: object) -> pb.Document:
    doc_id = text = index = ""
    match document:
        case str():
            text = document
        case Document(id=str(doc_id), text=str(text), index=str(index)):
            pass
        case [str(doc_id), str(text)]:
            pass
        case {"id": str(doc_id), "index": str(index), **others} if not others:
            pass
        case {"id": str(doc_id), "text": str(text), **others} if not others:
            pass
        case {"text": str(text), **others} if not others:
            pass
        case _:
            raise TypeError(
                f"documents[{place}]: must be a text, a Document, a pair (id, text) or a mapping with text "
                f"and optionally id, or with id and index, each a str; it is {document!r:.100}"
            )
    return pb.Document(id=doc_id, text=text, index=index)


# The standard health check (grpc.health.v1), without the package that has its stubs. That package belongs to
# the server extra, and a second copy of health.proto in the client would clash with it in protobuf's
# registry. Its two messages have one string field and one enum field, both numbered 1. Protobuf's own
# StringValue and Int32Value have the same bytes on the wire.
# Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
_HEALTH_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def _read_health(response: Int32Value) -> None:
    name = _HEALTH_NAMES.get(response.value, str(response.value))
    if name != "SERVING":
        raise Unavailable(f"the server reports the health {name}")


def check_health(service: str) -> UnaryCall[Int32Value, None]:
    """Make the health check of a service; reading the answer raises Unavailable unless it is SERVING."""
    return UnaryCall("/grpc.health.v1.Health/Check", StringValue(value=service), Int32Value, _read_health)


# The empty name means the server as a whole.
CHECK_HEALTH = check_health("")
