"""The fields of our Lucene indexes, for who writes and who reads them, and Java's classes by name."""

from functools import cache
from typing import Any

# As in Anserini's indexes, so that those can be searched, too.
ID, CONTENTS = "id", "contents"

# The text with its expansions, where there are any; the tokens with their weights.
EXPANDED, IMPACTS = "expanded", "impacts"

# The number of a document among all that were ever added, and of a chunk among all chunks.
PLACE = "place"

# In an index of chunks, which is beside that of the documents, in this folder of it.
VECTOR, VECTORS = "vector", "vectors"

# What an index without some of them is told.
NO_EXPANSIONS = "the index has no expansions; index it with 'expansions' in its lines"
NO_IMPACTS = "the index has no impacts; index it with 'impacts' in its lines"
NO_VECTORS = "the index has no vectors; index it with --encode RANKER, or with 'vector' in its lines"

# Between a token and its weight: no token may hold it.
WEIGHT_MARK = "\x01"


@cache
def java(name: str) -> Any:
    """Import a class of Lucene (`search.Sort`), or another by its whole name (`io.…`, `com.…`, `java.…`)."""
    from jnius import autoclass

    return autoclass(name if name.startswith(("io.", "com.", "java.")) else f"org.apache.lucene.{name}")


def bytes_of(doc_id: str) -> Any:
    """Make the term of a doc_id. Half a surrogate pair, which cannot be encoded, becomes a question mark."""
    return java("util.BytesRef")(doc_id.encode(errors="replace"))
