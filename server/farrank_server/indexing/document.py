"""What a collection is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """One document to index; its text comes back from the index byte for byte."""

    doc_id: str
    text: str


class CollectionError(ValueError):
    """A collection cannot be indexed as it is: names the file, the line and what is wrong with it."""
