"""The fields of Lucene indexes, and Java's classes by name."""

from functools import cache
from typing import Any

# As in Anserini's indexes, so that those can be searched, too.
ID, CONTENTS = "id", "contents"


@cache
def java(name: str) -> Any:
    """Import a class of Lucene (`search.Sort`), Anserini (`io.anserini.…`) or Java (`java.…`)."""
    from jnius import autoclass

    return autoclass(name if name.startswith(("io.", "java.")) else f"org.apache.lucene.{name}")


def cast(name: str, found: Any) -> Any:
    """Take a Java object for what it is, where a method only promises a base class."""
    import jnius

    return jnius.cast(f"org.apache.lucene.{name}", found)


def bytes_of(doc_id: str) -> Any:
    """Make the term of a doc_id. Half a surrogate pair, which cannot be encoded, becomes a question mark."""
    return java("util.BytesRef")(doc_id.encode(errors="replace"))
