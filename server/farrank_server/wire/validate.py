"""Is a request well formed and within the limits? Each refusal names the field, the problem, the limit."""

from collections import Counter
from collections.abc import Sequence

from farrank.v1 import rerank_pb2 as pb
from farrank_server.config.schema import LimitsConfig
from farrank_server.errors import InvalidArgument


def documents_of(request: pb.RerankRequest, limits: LimitsConfig) -> tuple[list[str], tuple[str, ...]]:
    """Check a request; return the ids and texts of its documents, which are read from the message only once.

    Raises: InvalidArgument.
    """
    _check_size(request.ByteSize(), limits)
    _check_query(request.query, limits)
    if not request.documents:
        raise InvalidArgument("documents: is empty; at least 1 document is needed")
    if len(request.documents) > limits.max_documents:
        raise InvalidArgument(
            f"documents: has {len(request.documents)} entries; max_documents is {limits.max_documents}"
        )
    texts = tuple(document.text for document in request.documents)
    _check_texts(texts, limits)
    ids = [document.id for document in request.documents]
    _check_ids(ids)
    _check_options(request.options)
    return ids, texts


def check_search(request: pb.SearchAndRerankRequest, limits: LimitsConfig) -> None:
    """Check a request.

    Raises: InvalidArgument.
    """
    _check_size(request.ByteSize(), limits)
    _check_query(request.query, limits)
    _check_not_negative("k", request.k)
    if request.k > limits.max_documents:
        raise InvalidArgument(f"k: is {request.k}; max_documents is {limits.max_documents}")
    _check_options(request.options)


def _check_size(request_bytes: int, limits: LimitsConfig) -> None:
    if request_bytes > limits.max_request_bytes:
        raise InvalidArgument(
            f"request: has {request_bytes} bytes; max_request_bytes is {limits.max_request_bytes}"
        )


def _check_query(query: str, limits: LimitsConfig) -> None:
    if not query.strip():
        raise InvalidArgument(f"query: is {'blank' if query else 'empty'}; it must hold at least one word")
    size = len(query.encode())
    if size > limits.max_query_bytes:
        raise InvalidArgument(f"query: has {size} bytes; max_query_bytes is {limits.max_query_bytes}")


def _check_texts(texts: Sequence[str], limits: LimitsConfig) -> None:
    for index, text in enumerate(texts):
        # A character takes at most 4 bytes: most texts need no encoding to be known as small enough.
        if len(text) * 4 > limits.max_document_bytes:
            size = len(text.encode())
            if size > limits.max_document_bytes:
                raise InvalidArgument(
                    f"documents[{index}].text: has {size} bytes; "
                    f"max_document_bytes is {limits.max_document_bytes}"
                )


def _check_ids(ids: Sequence[str]) -> None:
    # All empty: the caller tells results apart by index.
    if not any(ids):
        return
    doc_id, times = Counter(ids).most_common(1)[0]
    if times > 1:
        first = ids.index(doc_id)
        second = ids.index(doc_id, first + 1)
        raise InvalidArgument(
            f"documents[{second}].id: {doc_id[:100]!r} stands at documents[{first}], too; ids must be unique"
        )


def _check_options(options: pb.RerankOptions) -> None:
    for field in ("top_n", "max_chunks"):
        _check_not_negative(f"options.{field}", getattr(options, field))


def _check_not_negative(field: str, value: int) -> None:
    if value < 0:
        raise InvalidArgument(f"{field}: is {value}; it must be 0 (no limit of the caller's own) or more")
