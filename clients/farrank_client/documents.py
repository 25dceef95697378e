"""What a caller brings to be ranked."""

from collections.abc import Sequence
from dataclasses import dataclass

from farrank.v1 import rerank_pb2


@dataclass(frozen=True, slots=True)
class Document:
    """One candidate: the caller's name for it, unique within a call, and its whole text."""

    id: str
    text: str


def to_pb(documents: Sequence[str | Document]) -> list[rerank_pb2.Document]:
    """Put documents on the wire; plain strings travel without an id, told apart by their place.

    Raises: TypeError where the caller gave one string instead of a sequence of them.
    """
    if isinstance(documents, str):
        raise TypeError("documents: a sequence of documents is needed, not one string")
    return [
        rerank_pb2.Document(text=document)
        if isinstance(document, str)
        else rerank_pb2.Document(id=document.id, text=document.text)
        for document in documents
    ]
