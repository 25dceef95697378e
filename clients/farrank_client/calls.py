"""The calls of the service as values: method, request, and how to read the response.

Both clients build them here, so that neither knows more than how to send one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from farrank.v1 import rerank_pb2 as pb
from farrank_client.catalog import Catalog
from farrank_client.errors import Unavailable
from farrank_client.ranking import Priority, Ranking, ScoreScale

Response = TypeVar("Response", bound=Message)
Answer = TypeVar("Answer")

SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"].full_name


@dataclass(frozen=True, slots=True)
class Document:
    """One candidate: the caller's name for it, unique within a call, and its whole text.

    With `index` it brings no text: the server's index of that name has the document under this id.
    """

    id: str
    text: str = ""
    index: str = ""


# Plain strings travel without an id; their place tells them apart.
DocumentLike = str | Document | tuple[str, str] | Mapping[str, str]
Documents = Sequence[DocumentLike] | Mapping[str, str]


class RerankOptions(TypedDict, total=False):
    """What either call may ask for; None, or an option left out, is the server's default.

    All documents are scored: `top_n` limits what is returned, `max_chunks` what is read of each. Scores are
    the ranker's own, for a cross-encoder logits: `score_scale=ScoreScale.SIGMOID` puts them between 0 and 1.
    `count_tokens_cut` makes `Result.tokens_cut` exact, at the price of tokenizing documents to their end.
    With `priority=Priority.BATCH` a call waits for those of others; give it a deadline that lets it.
    """

    ranker: str | None
    top_n: int | None
    max_chunks: int | None
    return_texts: bool
    return_chunk_scores: bool
    score_scale: ScoreScale | None
    priority: Priority | None
    count_tokens_cut: bool


@dataclass(frozen=True, slots=True)
class Call(Generic[Response, Answer]):
    """One unary call: its full method name, its request, its response's type and how to read that."""

    method: str
    request: Message
    response_type: type[Response]
    read: Callable[[Response], Answer]


def rerank(query: str, documents: Documents, options: RerankOptions) -> Call[pb.RerankResponse, Ranking]:
    """Rerank documents that the caller brings.

    Raises: TypeError, naming the place, for what is no document.
    """
    request = pb.RerankRequest(
        query=query, documents=documents_to_pb(documents), options=_options_to_pb(options)
    )
    return Call(f"/{SERVICE}/Rerank", request, pb.RerankResponse, Ranking.from_pb)


def search_and_rerank(
    query: str, index: str | None, k: int | None, options: RerankOptions
) -> Call[pb.SearchAndRerankResponse, Ranking]:
    """Rerank what an index of the server finds."""
    request = pb.SearchAndRerankRequest(query=query, index=index, k=k, options=_options_to_pb(options))
    return Call(f"/{SERVICE}/SearchAndRerank", request, pb.SearchAndRerankResponse, Ranking.from_pb)


LIST_RANKERS = Call(
    f"/{SERVICE}/ListRankers", pb.ListRankersRequest(), pb.ListRankersResponse, Catalog.from_pb
)


def _options_to_pb(options: RerankOptions) -> pb.RerankOptions:
    """Put the options on the wire; None leaves a field to the server's default.

    Raises: TypeError for what is no option.
    """
    known = RerankOptions.__annotations__
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"there is no option {', '.join(unknown)}; known are: {', '.join(known)}")
    values: dict[str, Any] = {**options}
    if scale := options.get("score_scale"):
        values["score_scale"] = scale.value
    if priority := options.get("priority"):
        values["priority"] = priority.value
    return pb.RerankOptions(**values)


def documents_to_pb(documents: Documents) -> list[pb.Document]:
    """Put documents on the wire. A mapping of all of them is one of ids to texts.

    Raises: TypeError, naming the place, for what is no document, and for one string instead of several.
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
                f"and maybe id, or with id and index, each a str; it is {document!r:.100}"
            )
    return pb.Document(id=doc_id, text=text, index=index)


# The standard health check (grpc.health.v1), asked without the package that carries its stubs. That package
# belongs to the server extra, and a second copy of health.proto in the client would clash with it in
# protobuf's registry. So its two messages, one string field and one enum field numbered 1, are read as
# protobuf's own StringValue and Int32Value: the same bytes on the wire.
# Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
_HEALTH_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def _read_health(response: Int32Value) -> None:
    name = _HEALTH_NAMES.get(response.value, str(response.value))
    if name != "SERVING":
        raise Unavailable(f"the server answers that its health is {name}")


def check_health(service: str) -> Call[Int32Value, None]:
    """Ask once for the health of a service; reading the answer raises Unavailable where it is not SERVING."""
    return Call("/grpc.health.v1.Health/Check", StringValue(value=service), Int32Value, _read_health)


# The empty name asks about the server as a whole.
CHECK_HEALTH = check_health("")
