"""Collections: JSONL, a document a line, its title in front of its text as the server's own index has it."""

from collections.abc import Collection, Sequence
from pathlib import Path

from farrank_loadtest.errors import InputError
from farrank_loadtest.trec.lines import json_object, named_string, numbered_lines

_IDS = ("id", "docid", "doc_id", "pid", "_id")
_TEXTS = ("text", "contents", "body")


def read_collection(paths: Sequence[Path], doc_ids: Collection[str]) -> dict[str, str]:
    """Read the texts of these documents, and pass over all others: a collection may outgrow the memory.

    What no file holds is left out of the answer; see `missing_documents`.
    Raises: InputError naming file and line if a line is malformed, or one of the documents stands twice.
    """
    wanted = frozenset(doc_ids)
    texts: dict[str, str] = {}
    for path in paths:
        for where, line in numbered_lines(path):
            fields = json_object(where, line)
            doc_id = named_string(where, fields, _IDS)
            if doc_id not in wanted:
                continue
            if doc_id in texts:
                raise InputError(f"{where}: document {doc_id!r} stands twice")
            title = named_string(where, fields, ("title",)) if fields.get("title") else ""
            text = named_string(where, fields, _TEXTS)
            texts[doc_id] = f"{title}\n\n{text}" if title else text
    return texts


def missing_documents(texts: dict[str, str], doc_ids: Collection[str]) -> str:
    """Say how many of the documents have no text, and name the first few; empty if all have one."""
    missing = sorted(set(doc_ids) - texts.keys())
    if not missing:
        return ""
    named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
    return f"{len(missing):,} of {len(doc_ids):,} candidate documents are not in the collection: {named}"
