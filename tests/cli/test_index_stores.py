"""`farrank index` with what is kept beside an index: written, grown with it, resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_rankers.files.open import open_reader
from farrank_server.stores.index_manifest import read_manifest
from farrank_server.stores.token_store import TokenStore, key_of

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


def collection(path: Path, *texts: str, first: int = 0) -> Path:
    lines = [json.dumps({"id": f"d{first + n}", "text": text}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_tokens_are_kept_and_grow_with_the_index(farrank: Farrank, tmp_path: Path) -> None:
    out = tmp_path / "out"
    texts = [
        "The Rhine rises in the Alps.",
        " ",
        "Bread 🍞 is baked\r\n from  flour.",
        "Rivers meet the sea.",
    ]
    some, more = (
        collection(tmp_path / "a.jsonl", *texts[:3]),
        collection(tmp_path / "b.jsonl", texts[3], first=3),
    )
    assert (
        farrank("index", some, "--tokens", "embedded", "--tokens", "embedded:maxp", "--out", out).exit_code
        == 0
    )

    refused = farrank("index", more, "--append", "--out", out)
    assert refused.exit_code == 2
    assert "keeps tokens/" in refused.err
    grown = farrank(
        "index", more, "--append", "--tokens", "embedded", "--delete", _ids(tmp_path, "d0"), "--out", out
    )
    assert grown.out == f"{out}: 2 documents\n", grown.err

    manifest = read_manifest(out)
    assert manifest is not None
    tokenizer = open_reader("embedded").tokenizer
    assert manifest.stores == (key_of(tokenizer),)
    store = TokenStore(out / key_of(tokenizer), manifest.id)
    for place, text in enumerate([texts[0], *texts[2:]]):
        kept, read = store.read(place, 5), tokenizer.read(text, 5, count_tokens=True)
        assert kept.ids.tolist() == read.ids.tolist()
        assert (kept.starts.tolist(), kept.ends.tolist()) == (read.starts.tolist(), read.ends.tolist())
        assert (kept.characters_cut, kept.total_tokens) == (read.characters_cut, read.total_tokens)
    with pytest.raises(KeyError):
        store.read(3, 5)


def test_a_ranker_that_cannot_be_opened_is_named(farrank: Farrank, tmp_path: Path) -> None:
    given = collection(tmp_path / "a.jsonl", "x")
    outcome = farrank("index", given, "--tokens", tmp_path / "none", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"farrank: --tokens {tmp_path / 'none'}: ")


def _ids(folder: Path, *doc_ids: str) -> Path:
    path = folder / "ids.txt"
    path.write_text("\n".join(doc_ids), encoding="utf-8")
    return path
