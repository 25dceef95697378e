"""The fields of Farrank's Lucene indexes, for writing and reading, and access to Java's classes."""

from functools import cache
from typing import Any

# The same names as in Anserini's indexes, so that those can be searched, too.
ID, CONTENTS = "id", "contents"

# A document's text with its expansions, if there are any; its tokens with their weights.
EXPANDED, IMPACTS = "expanded", "impacts"

# The number of a document among all documents ever added, or of a chunk among all chunks.
PLACE = "place"

# The field of a chunk's vector, and the folder within the document index that holds the index of chunks.
VECTOR, VECTORS = "vector", "vectors"

# The errors for an index without one of these.
NO_EXPANSIONS = "the index has no expansions; index it with 'expansions' in its lines"
NO_IMPACTS = "the index has no impacts; index it with 'impacts' in its lines"
NO_VECTORS = "the index has no vectors; index it with --encode RANKER, or with 'vector' in its lines"

# Separates a token from its weight; no token may contain it.
WEIGHT_MARK = "\x01"


@cache
def java(name: str) -> Any:
    """Import a class of Lucene (`search.Sort`), or another by its whole name (`io.…`, `com.…`, `java.…`)."""
    from jnius import autoclass

    return autoclass(name if name.startswith(("io.", "com.", "java.")) else f"org.apache.lucene.{name}")


def bytes_of(doc_id: str) -> Any:
    """The Lucene term of a doc_id. Half a surrogate pair, which has no encoding, becomes a question mark."""
    return java("util.BytesRef")(doc_id.encode(errors="replace"))
