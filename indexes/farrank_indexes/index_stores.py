"""All stores of one index, opened for a server."""

from pathlib import Path

from farrank_indexes import encodings_store, text_store, token_store, token_vector_store
from farrank_indexes.encodings_store import EncodingsStore, TruncatedEncodings
from farrank_indexes.index_manifest import IndexManifest
from farrank_indexes.parts import first_free
from farrank_indexes.text_store import TextStore
from farrank_indexes.token_store import TokenStore
from farrank_indexes.token_vector_store import TokenVectorStore
from farrank_rankers.chunking import Chunking
from farrank_rankers.reader import Reader
from farrank_settings.errors import ConfigError

STORE_FOLDERS = (token_store.FOLDER, encodings_store.FOLDER, token_vector_store.FOLDER, text_store.FOLDER)


class IndexStores:
    """The stores of an index. A document is found by its place. Any thread may read.

    With `verify`, every byte is read once and compared with its digest.
    Raises: ConfigError naming a store that is damaged, belongs to another index or to another change of this
    one.
    """

    def __init__(self, index: Path, manifest: IndexManifest, *, verify: bool = True) -> None:
        self._index, self._manifest = index, manifest
        self._tokens: dict[str, TokenStore] = {}
        self._encodings: dict[str, EncodingsStore | TokenVectorStore] = {}
        self._texts: TextStore | None = None
        for key in manifest.stores:
            kind = key.partition("/")[0]
            if kind == token_store.FOLDER:
                self._tokens[key] = TokenStore(index / key, manifest.id, verify=verify)
            elif kind == encodings_store.FOLDER:
                self._encodings[key] = EncodingsStore(index / key, manifest.id, verify=verify)
            elif kind == token_vector_store.FOLDER:
                self._encodings[key] = TokenVectorStore(index / key, manifest.id, verify=verify)
            elif kind == text_store.FOLDER:
                self._texts = TextStore(index / key, manifest.id, verify=verify)
            else:
                raise ConfigError(f"{index / key}: this version of Farrank has no such store")
        texts = {} if self._texts is None else {text_store.FOLDER: self._texts}
        for key, store in (self._tokens | self._encodings | texts).items():
            if (places := first_free(index / key, store.manifest["parts"])) != manifest.places:
                raise ConfigError(
                    f"{index / key}: goes up to the place {places}, and the index up to {manifest.places}: "
                    "it belongs to another change of the index; restore the whole folder, or index the "
                    "collection again"
                )

    @property
    def index_id(self) -> str:
        """The id of the index's build."""
        return self._manifest.id

    @property
    def generation(self) -> int:
        """The number of changes since the build."""
        return self._manifest.generation

    def length(self, place: int) -> int:
        """Return the characters of a document's text. Raises: KeyError if no document has the place."""
        if self._tokens:
            return next(iter(self._tokens.values())).characters(place)
        return next(iter(self._encodings.values())).characters(place)

    @property
    def texts(self) -> TextStore | None:
        """The texts with the bounds of their sentences. None if the index has none, as older ones."""
        return self._texts

    def tokens_for(self, reader: Reader) -> TokenStore | None:
        """Find the tokens that this ranker would make. Returns None if none are of its tokenizer."""
        return next((store for store in self._tokens.values() if not _why_not(store, reader)), None)

    def why_no_tokens(self, reader: Reader) -> str:
        """Explain why no stored tokens fit the ranker. Empty if some fit or the index stores no tokens."""
        reasons = [_why_not(store, reader) for store in self._tokens.values()]
        return "; ".join(reasons) if all(reasons) else ""

    def encodings_for(self, encodings_version: str, chunking: Chunking) -> TruncatedEncodings | None:
        """Find the encodings that a ranker of this version would make, or more.

        Returns None if none have its windows.
        """
        for store in self._encodings.values():
            if not store.why_not(encodings_version, chunking):
                return TruncatedEncodings(store, chunking)
        return None

    def why_no_encodings(self, encodings_version: str, chunking: Chunking) -> str:
        """Explain why no stored encodings fit the ranker. Empty if some fit or the index stores none."""
        reasons = [store.why_not(encodings_version, chunking) for store in self._encodings.values()]
        return "; ".join(reasons) if all(reasons) else ""


def _why_not(store: TokenStore, reader: Reader) -> str:
    return store.why_not(reader.tokenizer, reader.spec.readable_tokens(), reader.document_spaces)
