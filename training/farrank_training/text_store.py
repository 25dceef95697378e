"""The texts of a collection by their ids, read from its files when they are needed."""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from farrank_training.byte_spans import ByteSpans
from farrank_trec import DocumentKeys, read_documents
from farrank_trec.errors import InputError


class TextStore(Collection[str]):
    """The places of the wanted documents in their collections, by id.

    The collections are read once, a line at a time: memory follows the number of wanted ids, not the size of
    the files. `fields` renames the keys, as in `read_documents`. Threads and processes may share a store, as
    they may share `ByteSpans`.
    Raises: InputError as `read_documents`.
    """

    def __init__(
        self,
        sources: Sequence[Path | str],
        wanted: Collection[str],
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self._keys = DocumentKeys(fields)
        self._spans = ByteSpans(sources)
        self._numbers: dict[str, int] = {}
        self._blank = bytearray()
        places = {str(source): place for place, source in enumerate(sources)}
        for each in read_documents(sources, wanted=wanted, fields=fields):
            self._numbers[each.doc_id] = len(self._spans)
            self._spans.keep(places[str(each.source)], each.offset, each.line)
            self._blank.append(not each.text.strip())

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, doc_id: object) -> bool:
        return doc_id in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def text(self, doc_id: str) -> str:
        """Read a document's text, its title first.

        Raises: KeyError if the store lacks the document; InputError if its file was changed.
        """
        return self.text_at(self._numbers[doc_id])

    def text_at(self, number: int) -> str:
        """Read the text of a document by its number, which takes less memory than its id.

        Raises: InputError if its file was changed.
        """
        place, line = self._spans.place(number), self._spans.read(number)
        try:
            found = self._keys.read(place, line)
        except InputError:
            found = None
        if found is None or self._numbers.get(found[0]) != number:
            raise InputError(f"{place}: the file was changed after it had been read")
        return found[1]

    def numbers(self, doc_ids: Collection[str]) -> "array[int]":
        """Give the numbers of the documents that exist and are not blank."""
        found = (self._numbers.get(doc_id) for doc_id in doc_ids)
        return array("i", [each for each in found if each is not None and not self._blank[each]])

    @property
    def blank(self) -> int:
        """Count the documents whose text is only white space."""
        return sum(self._blank)
