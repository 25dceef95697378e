"""Checks that a request is well formed and within the limits. Errors name field, problem and limit.

The endpoints check the size of a request as a whole, since they know its bytes: measuring a message takes as
long as writing it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import InvalidArgument, TooLarge
from farrank_server.config.schema import DepthConfig, LimitsConfig
from farrank_server.service.fields import long_work
from farrank_settings.errors import ConfigError

# About twice the bytes of the tokens that inputs have room for, in English.
MAX_INSTRUCTION_BYTES = 2048

# The sentences that compete for it have about eight times the tokens, and are chosen in half a second.
MAX_CONTEXT_TOKENS = 65_536

# After decoding this many characters, which takes some milliseconds, other tasks of the event loop run.
TURN_CHARACTERS = 2_000_000


class RequestDocuments(NamedTuple):
    """The documents of a request: ids, texts, and the index of each that names one, by its number."""

    ids: list[str]
    texts: tuple[str, ...]
    indexes: Mapping[int, str]


async def documents_of(request: pb.RerankRequest, limits: LimitsConfig) -> RequestDocuments:
    """Check a request; return the content of its documents, which is read from the message only once.

    Reading decodes each text: after each few million characters, other tasks of the event loop run.
    Raises: InvalidArgument.
    """
    _check_request(request, limits)
    count = len(request.documents)
    if not count:
        raise InvalidArgument("documents: is empty; at least 1 document is needed")
    if count > limits.max_documents:
        raise InvalidArgument(f"documents: has {count} entries; max_documents is {limits.max_documents}")
    texts: list[str] = []
    characters = 0
    for index, document in enumerate(request.documents):
        texts.append(text := document.text)
        # A character takes at most 4 bytes, so most texts are known to be small enough without encoding them.
        if len(text) * 4 > limits.max_document_bytes:
            _check_bytes(f"documents[{index}].text", len(text.encode()), "max_document_bytes", limits)
        characters += len(text)
        if characters > TURN_CHARACTERS:
            characters = 0
            await long_work().pause()
    ids = [document.id for document in request.documents]
    indexes = {number: document.index for number, document in enumerate(request.documents) if document.index}
    for number, named in indexes.items():
        if texts[number]:
            raise InvalidArgument(
                f"documents[{number}].text: must be empty where index names an index, here {named[:100]!r}"
            )
        if not ids[number]:
            raise InvalidArgument(f"documents[{number}].id: is empty; it must name a document of the index")
    doc_id, times = Counter(ids).most_common(1)[0]
    # All ids may be empty: the caller then tells results apart by index.
    if times > 1 and any(ids):
        first = ids.index(doc_id)
        second = ids.index(doc_id, first + 1)
        raise InvalidArgument(
            f"documents[{second}].id: {doc_id[:100]!r} stands at documents[{first}], too; ids must be unique"
        )
    return RequestDocuments(ids, tuple(texts), indexes)


def check_search(request: pb.SearchAndRerankRequest, limits: LimitsConfig) -> None:
    """Check a request.

    Raises: InvalidArgument.
    """
    _check_request(request, limits)
    _check_not_negative("k", request.k)
    if request.k > limits.max_documents:
        raise InvalidArgument(f"k: is {request.k}; max_documents is {limits.max_documents}")


_MODES: Mapping[int, Literal["all", "adaptive"]] = {
    pb.DEPTH_MODE_ALL: "all",
    pb.DEPTH_MODE_ADAPTIVE: "adaptive",
}


def depth_of(options: pb.RerankOptions) -> DepthConfig | None:
    """Read the depth that a call asks for; None if it asks for none. Raises: InvalidArgument."""
    depth = options.depth
    budget = {each.name: value for each, value in depth.ListFields() if each.name != "mode"}
    if not (depth.mode or budget):
        return None
    if depth.mode not in _MODES:
        allowed = ", ".join(f"{name} ({number})" for name, number in pb.DepthMode.items() if number)
        raise InvalidArgument(f"options.depth.mode: is {depth.mode}; it must be one of {allowed}")
    try:
        return DepthConfig(_MODES[depth.mode], **budget)
    except ConfigError as error:
        raise InvalidArgument(f"options.depth.{error.problems[0]}") from None


def wants_evidence(options: pb.RerankOptions) -> bool:
    """Whether a call asks for sentences or a context."""
    return options.evidence == pb.EVIDENCE_UNIT_SENTENCES or bool(options.context_tokens)


def too_large(size: str, limits: LimitsConfig) -> TooLarge:
    """The error for a request that is too large as a whole, for the endpoints."""
    return TooLarge(f"request: has {size}; max_request_bytes is {limits.max_request_bytes}")


def _check_request(request: pb.RerankRequest | pb.SearchAndRerankRequest, limits: LimitsConfig) -> None:
    query = request.query
    if not query.strip():
        raise InvalidArgument(f"query: is {'blank' if query else 'empty'}; it must hold at least one word")
    _check_bytes("query", len(query.encode()), "max_query_bytes", limits)
    _check_not_negative("options.top_n", request.options.top_n)
    _check_not_negative("options.max_chunks", request.options.max_chunks)
    if (size := len(request.options.instruction.encode())) > MAX_INSTRUCTION_BYTES:
        raise InvalidArgument(
            f"options.instruction: has {size} bytes; at most {MAX_INSTRUCTION_BYTES} are allowed"
        )
    _check_evidence(request.options, limits)
    if (priority := request.options.priority) not in pb.Priority.values():
        allowed = ", ".join(f"{name} ({number})" for name, number in pb.Priority.items() if number)
        raise InvalidArgument(f"options.priority: is {priority}; it must be one of {allowed}, or absent")


def _check_evidence(options: pb.RerankOptions, limits: LimitsConfig) -> None:
    if options.evidence not in pb.EvidenceUnit.values():
        allowed = ", ".join(f"{name} ({number})" for name, number in pb.EvidenceUnit.items() if number)
        raise InvalidArgument(
            f"options.evidence: is {options.evidence}; it must be one of {allowed}, or absent"
        )
    documents = options.evidence_documents
    _check_not_negative("options.evidence_documents", documents)
    if documents > limits.max_documents:
        raise InvalidArgument(
            f"options.evidence_documents: is {documents}; max_documents is {limits.max_documents}"
        )
    _check_not_negative("options.context_tokens", options.context_tokens)
    if options.context_tokens > MAX_CONTEXT_TOKENS:
        raise InvalidArgument(
            f"options.context_tokens: is {options.context_tokens}; at most {MAX_CONTEXT_TOKENS} are allowed"
        )
    if documents and options.evidence != pb.EVIDENCE_UNIT_SENTENCES:
        raise InvalidArgument(
            f"options.evidence_documents: is {documents}; it is allowed only if evidence is "
            "EVIDENCE_UNIT_SENTENCES"
        )


def _check_bytes(field: str, size: int, limit: str, limits: LimitsConfig) -> None:
    if size > getattr(limits, limit):
        raise InvalidArgument(f"{field}: has {size} bytes; {limit} is {getattr(limits, limit)}")


def _check_not_negative(field: str, value: int) -> None:
    if value < 0:
        raise InvalidArgument(f"{field}: is {value}; it must be 0 (no limit of the caller's own) or more")
