"""The hits of a Lucene search, brought over from Java all at once.

pyjnius makes a Python object of each hit, of each thing that it was sorted by, and a call for each id: 40 µs
a hit, more than the search takes. Jackson, which Anserini brings, writes them all as one JSON text.
"""

from array import array
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from farrank_server.first_stage.lucene_fields import java


class Hit(NamedTuple):
    """A hit: its score, Lucene's number of the document, its id, and its place (-1 without one)."""

    score: float
    number: int
    doc_id: str
    place: int


class _Bytes(msgspec.Struct):
    """A `BytesRef`: `length` bytes of an array, from `offset` on."""

    bytes: bytes
    offset: int
    length: int

    def text(self) -> str:
        return self.bytes[self.offset : self.offset + self.length].decode()


class _FieldDoc(msgspec.Struct):
    """A hit that was sorted by `fields`; its score is no number where none was made."""

    score: float | str
    doc: int
    fields: list[float | int | _Bytes]


class _TopDocs(msgspec.Struct):
    hits: list[_FieldDoc] = msgspec.field(name="scoreDocs")


_decoder = msgspec.json.Decoder(_TopDocs)


def read_hits(found: Any) -> Iterator[Hit]:
    """Read the `TopFieldDocs` of a search that was sorted by score, id and place, or some of these.

    The id must be among them, and the place behind it.
    """
    mapper = _mapper()
    hits = _decoder.decode(mapper.writeValueAsString(found)).hits
    # As exact as in Java: its shortest decimals are those of 4 bytes.
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
    """Make what writes public fields, and nothing else: there are neither cycles nor methods with effects."""
    jackson = "com.fasterxml.jackson"
    mapper = java(f"{jackson}.databind.ObjectMapper")()
    kinds = java(f"{jackson}.annotation.PropertyAccessor")
    none = java(f"{jackson}.annotation.JsonAutoDetect$Visibility").NONE
    for kind in (kinds.GETTER, kinds.IS_GETTER):
        mapper.setVisibility(kind, none)
    mapper.disable(java(f"{jackson}.databind.SerializationFeature").FAIL_ON_EMPTY_BEANS)
    return mapper


def make_ready() -> None:
    """Do on one thread what must not be done on two at once."""
    _mapper()
