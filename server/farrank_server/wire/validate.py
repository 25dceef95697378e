"""Is a request well formed and within the limits? Each refusal names the field, the problem, the limit."""

from collections import Counter
from collections.abc import Sequence

from farrank.v1 import rerank_pb2 as pb
from farrank_server.config.schema import LimitsConfig
from farrank_server.errors import InvalidArgument


def check_query(query: str, limits: LimitsConfig) -> None:
    """Raises: InvalidArgument if the query is blank or too large."""
    if not query.strip():
        raise InvalidArgument(f"query: is {'blank' if query else 'empty'}; it must hold at least one word")
    size = len(query.encode())
    if size > limits.max_query_bytes:
        raise InvalidArgument(f"query: has {size} bytes; max_query_bytes is {limits.max_query_bytes}")


def check_documents(documents: Sequence[pb.Document], limits: LimitsConfig) -> None:
    """Raises: InvalidArgument if there is none, too many, one too large, or an id twice."""
    if not documents:
        raise InvalidArgument("documents: is empty; at least 1 document is needed")
    if len(documents) > limits.max_documents:
        raise InvalidArgument(
            f"documents: has {len(documents)} entries; max_documents is {limits.max_documents}"
        )
    for index, document in enumerate(documents):
        # A character takes at most 4 bytes: most texts need no encoding to be known as small enough.
        if len(document.text) * 4 > limits.max_document_bytes:
            size = len(document.text.encode())
            if size > limits.max_document_bytes:
                raise InvalidArgument(
                    f"documents[{index}].text: has {size} bytes; "
                    f"max_document_bytes is {limits.max_document_bytes}"
                )
    _check_ids([document.id for document in documents])


def check_options(options: pb.RerankOptions) -> None:
    """Raises: InvalidArgument if a count is negative."""
    for field in ("top_n", "max_chunks"):
        _check_not_negative(f"options.{field}", getattr(options, field))


def check_k(k: int, limits: LimitsConfig) -> None:
    """Raises: InvalidArgument if k is negative or beyond what a request may hold."""
    _check_not_negative("k", k)
    if k > limits.max_documents:
        raise InvalidArgument(f"k: is {k}; max_documents is {limits.max_documents}")


def check_size(request_bytes: int, limits: LimitsConfig) -> None:
    """Raises: InvalidArgument if the request as a whole is too large."""
    if request_bytes > limits.max_request_bytes:
        raise InvalidArgument(
            f"request: has {request_bytes} bytes; max_request_bytes is {limits.max_request_bytes}"
        )


def _check_not_negative(field: str, value: int) -> None:
    if value < 0:
        raise InvalidArgument(f"{field}: is {value}; it must be 0 (no limit of the caller's own) or more")


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
