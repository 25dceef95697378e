"""Copies the hits of a Lucene search from Java all at once.

pyjnius would create a Python object for each hit and each of its sort values, and call Java for each id: 40
µs a hit, more than the search takes. Jackson, which comes with Anserini, writes all of them as one JSON text.
"""

from array import array
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from farrank_lucene.lucene_fields import java


class Hit(NamedTuple):
    """A hit: its score, Lucene's number of the document, its id, and its place (-1 if there is none)."""

    score: float
    number: int
    doc_id: str
    place: int


class _Bytes(msgspec.Struct):
    """A `BytesRef`: `length` bytes of an array, starting at `offset`."""

    bytes: bytes
    offset: int
    length: int

    def text(self) -> str:
        return self.bytes[self.offset : self.offset + self.length].decode()


class _FieldDoc(msgspec.Struct):
    """A hit that was sorted by `fields`; its score is NaN, written as a text, if none was computed."""

    score: float | str
    doc: int
    fields: list[float | int | _Bytes]


class _TopDocs(msgspec.Struct):
    hits: list[_FieldDoc] = msgspec.field(name="scoreDocs")


_decoder = msgspec.json.Decoder(_TopDocs)


def read_hits(found: Any) -> Iterator[Hit]:
    """Read the `TopFieldDocs` of a search that was sorted by score, id and place, or by some of these.

    The id must be among them, and the place after it.
    """
    mapper = _mapper()
    hits = _decoder.decode(mapper.writeValueAsString(found)).hits
    # Round to 4 bytes, so that scores are exactly those of Java: JSON has their shortest decimals.
    scores = array("f", [hit.score if isinstance(hit.score, float | int) else 0.0 for hit in hits])
    for hit, score in zip(hits, scores, strict=True):
        at = next(at for at, each in enumerate(hit.fields) if isinstance(each, _Bytes))
        doc_id = hit.fields[at]
        assert isinstance(doc_id, _Bytes)
        place = hit.fields[at + 1] if len(hit.fields) > at + 1 else -1
        assert isinstance(place, int)
        yield Hit(score, hit.doc, doc_id.text(), place)


@cache
def _mapper() -> Any:
    """Create the mapper, which writes only public fields: these have no cycles, and no methods run."""
    jackson = "com.fasterxml.jackson"
    mapper = java(f"{jackson}.databind.ObjectMapper")()
    kinds = java(f"{jackson}.annotation.PropertyAccessor")
    none = java(f"{jackson}.annotation.JsonAutoDetect$Visibility").NONE
    for kind in (kinds.GETTER, kinds.IS_GETTER):
        mapper.setVisibility(kind, none)
    mapper.disable(java(f"{jackson}.databind.SerializationFeature").FAIL_ON_EMPTY_BEANS)
    return mapper


def make_ready() -> None:
    """Initialize on one thread what two threads must not initialize at once."""
    _mapper()
