"""`farrank index` with stores: written, extended, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from farrank_cli import exporting
from farrank_cli.commands import index
from farrank_indexes.chunk_encoder import TokenVectorEncoder
from farrank_indexes.encodings_store import EncodingsStore
from farrank_indexes.index_builder import IndexOptions
from farrank_indexes.index_folder import Scratch
from farrank_indexes.index_manifest import IndexManifest, read_manifest
from farrank_indexes.token_store import TokenStore, key_of
from farrank_indexes.token_vector_store import TokenVectorStore
from farrank_lucene.jvm import child_environment
from farrank_rankers.files.open import open_reader
from farrank_runtimes.maxsim import compared_vectors

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


def collection(path: Path, *texts: str, first: int = 0) -> Path:
    lines = [json.dumps({"id": f"d{first + n}", "text": text}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_an_export_is_measured_on_the_first_documents(
    farrank: Farrank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read ahead, and indexed with the others."""
    given: list[str] = []

    def exported(who: str, source: str, *more: object, texts: list[str]) -> str:
        given.extend(texts)
        return source

    monkeypatch.setattr(exporting, "exported_source", exported)
    monkeypatch.setattr(index, "_EXPORTED_BY", 2)
    texts = ["The Rhine rises in the Alps.", "Bread is baked from flour.", "Rivers meet the sea."]
    out = tmp_path / "out"
    some = collection(tmp_path / "a.jsonl", *texts)
    made = farrank("index", some, "--encode", "embedded", "--export", "auto", "--out", out)
    assert made.out == f"{out}: 3 documents\n", made.err
    assert given == texts[:2]
    manifest = read_manifest(out)
    assert manifest is not None
    key, _ = manifest.stores
    store = EncodingsStore(out / key, manifest.id)
    assert [store.characters(place) for place in range(3)] == [len(text) for text in texts]


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
    assert "stores tokens/" in refused.err
    grown = farrank(
        "index", more, "--append", "--tokens", "embedded", "--delete", _ids(tmp_path, "d0"), "--out", out
    )
    assert grown.out == f"{out}: 2 documents\n", grown.err

    manifest = read_manifest(out)
    assert manifest is not None
    tokenizer = open_reader("embedded").tokenizer
    assert manifest.stores == ("texts", key_of(tokenizer))
    store = TokenStore(out / key_of(tokenizer), manifest.id)
    for place, text in enumerate([texts[0], *texts[2:]]):
        kept, read = store.read(place, 5), tokenizer.read(text, 5, count_tokens=True)
        assert kept.ids.tolist() == read.ids.tolist()
        assert (kept.starts.tolist(), kept.ends.tolist()) == (read.starts.tolist(), read.ends.tolist())
        assert (kept.characters_cut, kept.total_tokens) == (read.characters_cut, read.total_tokens)
    with pytest.raises(KeyError):
        store.read(3, 5)


def test_both_stores_keep_the_beginnings_that_are_asked_for(farrank: Farrank, tmp_path: Path) -> None:
    out, text = tmp_path / "out", "The Rhine rises in the Alps. " * 99
    given = collection(tmp_path / "a.jsonl", text, "Bread is baked.")
    limited = ("--max-document-tokens", 350)
    both = ("--tokens", "embedded", "--encode", "embedded", "--encode-precision", "fp32")
    made = farrank("index", given, *both, *limited, "--out", out)
    assert made.exit_code == 0, made.err
    manifest = read_manifest(out)
    assert manifest is not None
    reader = open_reader("embedded", max_document_tokens=350)
    read = reader.read_document(text, count_tokens=True)
    chunks = reader.split(read)
    folders = {key.partition("/")[0]: out / key for key in manifest.stores}
    tokens = TokenStore(folders["tokens"], manifest.id)
    encodings = EncodingsStore(folders["encodings"], manifest.id)
    assert tokens.manifest["max_document_tokens"] == encodings.manifest["max_document_tokens"] == 350
    kept = tokens.read(0, 350)
    assert kept.ids.tolist() == read.ids.tolist()
    assert (kept.characters_cut, kept.total_tokens) == (read.characters_cut, read.total_tokens)
    assert len(kept.ids) == 350 < (kept.total_tokens or 0)
    assert encodings.read(0).spans.tolist() == [[chunk.start, chunk.end] for chunk in chunks]

    more = collection(tmp_path / "b.jsonl", "Rye.", first=2)
    refused = farrank("index", more, "--append", *both, "--out", out)
    assert refused.exit_code == 2
    assert "its max_document_tokens is 350" in refused.err


def test_a_limit_of_nothing_that_is_kept_is_refused(farrank: Farrank, tmp_path: Path) -> None:
    given = collection(tmp_path / "a.jsonl", "x")
    outcome = farrank("index", given, "--max-document-tokens", 9, "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "--max-document-tokens needs --tokens or --encode" in outcome.err


def test_a_ranker_that_cannot_be_opened_is_named(farrank: Farrank, tmp_path: Path) -> None:
    given = collection(tmp_path / "a.jsonl", "x")
    outcome = farrank("index", given, "--tokens", tmp_path / "none", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"farrank: --tokens {tmp_path / 'none'}: ")


def test_encodings_lucene_and_manifest_stay_in_step(
    farrank: Farrank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, encode = tmp_path / "out", ("--encode", "embedded", "--encode-precision", "fp32")
    built = collection(tmp_path / "a.jsonl", "The Rhine rises in the Alps. " * 99, "Rye.", "Salt.", "Yeast.")
    assert farrank("index", built, *encode, "--out", out).exit_code == 0
    manifest, store = kept(out)
    assert manifest.vectors is not None
    assert store.read(0).features.vectors.shape[0] > 2
    chunks = sum(chunks_at(store, place) for place in range(4))
    assert (manifest.vectors.chunks, manifest.vectors.places) == (chunks, chunks)

    # Two of the changes are saved. Lucene has the others (d1 again, and d4) when their saving is interrupted.
    changed = {"d2": "Sea salt. " * 200, "d0": "The Rhone.", "d1": "Rye bread. " * 300, "d4": "Flour."}
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in changed.items()]
    (tmp_path / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
    deleted = tmp_path / "deleted.jsonl"
    deleted.write_text('{"id": "d0", "text": "old"}\n{"_id": "d3"}\n', encoding="utf-8")
    change = ["index", tmp_path / "b.jsonl", "--append", *encode, "--out", out]
    same = [*change, "--replace", "--delete", deleted]
    with monkeypatch.context() as patch:
        patch.setattr("farrank_indexes.index_builder._BATCH_DOCUMENTS", 2)
        patch.setattr(index, "IndexOptions", partial(IndexOptions, save_every_s=0.0))
        patch.setattr(Scratch, "save", interrupted_at(2))
        assert farrank(*same).exit_code == 130
    assert kept(out)[0] == manifest

    for other, message in (
        ([*change, "--replace"], "the interrupted change deletes other documents"),
        ([*change, "--delete", deleted], "the interrupted change replaces documents"),
    ):
        refused = farrank(*other, "--resume")
        assert refused.exit_code == 2
        assert message in refused.err
    resumed = farrank(*same, "--resume")
    assert resumed.out == f"{out}: 4 documents\n", resumed.err

    manifest, store = kept(out)
    assert (manifest.generation, manifest.documents, manifest.places) == (1, 4, 8)
    assert store.characters(6) == len(changed["d1"])
    places = dict(zip(changed, range(4, 8), strict=True))
    held = lucene_of(out)
    assert dict(held["documents"]) == places
    of_each = {doc_id: chunks_at(store, place) for doc_id, place in places.items()}
    assert Counter(doc_id for doc_id, _, _ in held["chunks"]) == of_each
    assert of_each["d1"] > 1
    expected = np.concatenate([store.read(place).features.vectors.numpy() for place in places.values()])
    assert [place for _, place, _ in held["chunks"]] == list(range(chunks, chunks + len(expected)))
    assert np.array_equal(np.array([vector for *_, vector in held["chunks"]], np.float32), expected)
    assert manifest.vectors is not None
    assert (manifest.vectors.chunks, manifest.vectors.places) == (len(expected), chunks + len(expected))


def kept(out: Path) -> tuple[IndexManifest, EncodingsStore]:
    """Return an index's manifest, and its encodings."""
    manifest = read_manifest(out)
    assert manifest is not None
    key, _ = manifest.stores
    return manifest, EncodingsStore(out / key, manifest.id)


def chunks_at(store: EncodingsStore, place: int) -> int:
    return len(store.read(place).spans)


def interrupted_at(number: int) -> Callable[[Scratch, Mapping[str, Any]], None]:
    """Save the state of an interrupted preparation, until Ctrl-C before the nth call."""
    calls, save = 0, Scratch.save

    def interrupted(scratch: Scratch, state: Mapping[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        save(scratch, state)

    return interrupted


LUCENE = """
import json, sys
from farrank_lucene.lucene_fields import ID, PLACE, VECTOR, java
from farrank_lucene.jvm import start_jvm

def held(folder, vectors):
    path = java("java.nio.file.Paths").get(folder)
    reader = java("index.DirectoryReader").open(java("store.FSDirectory").open(path))
    for leaf in reader.leaves().toArray():
        leaf = leaf.reader()
        live, places = leaf.getLiveDocs(), leaf.getNumericDocValues(PLACE)
        numbers = leaf.getFloatVectorValues(VECTOR) if vectors else None
        for number in range(leaf.maxDoc()):
            assert places.advanceExact(number)
            if live is None or live.get(number):
                assert not vectors or numbers.advance(number) == number
                vector = [list(numbers.vectorValue())] if vectors else []
                yield [leaf.storedFields().document(number).get(ID), places.longValue(), *vector]

start_jvm(256)
documents, chunks = held(sys.argv[1], False), held(sys.argv[1] + "/vectors", True)
print(json.dumps({"documents": list(documents), "chunks": sorted(chunks, key=lambda each: each[1])}))
"""


def lucene_of(out: Path) -> dict[str, list[Any]]:
    """Return Lucene's content: documents' ids and places, chunks' ids, places and vectors."""
    command = [sys.executable, "-c", LUCENE, str(out)]
    asked = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    held: dict[str, list[Any]] = json.loads(asked.stdout)
    return held


def _ids(folder: Path, *doc_ids: str) -> Path:
    path = folder / "ids.txt"
    path.write_text("\n".join(doc_ids), encoding="utf-8")
    return path


def test_token_vectors_grow_with_the_index_and_go_on_after_an_interruption(
    farrank: Farrank, tmp_path: Path, tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, source = tmp_path / "out", str(tiny_rankers["maxsim"])
    encode = ("--encode", source, "--codec", "int4", "--encode-precision", "fp32")
    texts = ["The Rhine rises in the Alps. " * 40, "Rye.", "Salt of the sea.", "Yeast."]
    built = farrank("index", collection(tmp_path / "a.jsonl", *texts), *encode, "--out", out)
    assert built.out == f"{out}: 4 documents\n", built.err
    more = ["Flour and bread. " * 30, "A river.", "The sea."]
    change = ["index", collection(tmp_path / "b.jsonl", *more, first=4), "--append", "--out", out]
    refused = farrank(*change, "--encode", source, "--encode-precision", "fp32")
    assert refused.exit_code == 2
    assert "its codec is 'int4', and the addition has 'int8'" in refused.err
    with monkeypatch.context() as patch:
        patch.setattr("farrank_indexes.index_builder._BATCH_DOCUMENTS", 1)
        patch.setattr(index, "IndexOptions", partial(IndexOptions, save_every_s=0.0))
        patch.setattr(Scratch, "save", interrupted_at(2))
        assert farrank(*change, *encode, "--delete", _ids(tmp_path, "d1")).exit_code == 130
    resumed = farrank(*change, *encode, "--delete", _ids(tmp_path, "d1"), "--resume")
    assert resumed.out == f"{out}: 6 documents\n", resumed.err
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.vectors is None
    _, key = manifest.stores
    store = TokenVectorStore(out / key, manifest.id)
    encoder = TokenVectorEncoder(source, "fp32")
    for place, encoded in enumerate(encoder.encode([*texts, *more])):
        document = store.read(place)
        assert document.spans.tolist() == encoded.spans.tolist()
        found = compared_vectors(document.features)
        assert found.codec is not None
        assert np.abs(found.codec.decode(found.rows.numpy()) - encoded.vectors).mean() < 0.1
    encoder.close()


def test_a_bi_encoder_and_a_multi_vector_model_share_an_index(
    farrank: Farrank, tmp_path: Path, tiny_rankers: dict[str, Path]
) -> None:
    given, out = collection(tmp_path / "a.jsonl", "The Rhine.", "Bread."), tmp_path / "out"
    chunks, tokens = ("--encode", tiny_rankers["biencoder"]), ("--encode", tiny_rankers["maxsim"])
    made = farrank("index", given, *chunks, *tokens, "--out", out)
    assert made.exit_code == 0, made.err
    manifest = read_manifest(out)
    assert manifest is not None
    assert [key.partition("/")[0] for key in manifest.stores] == [
        "encodings",
        "texts",
        "token-vectors",
    ]
    assert manifest.vectors is not None
    assert manifest.vectors.chunks == 2
    two = farrank("index", given, *chunks, "--encode", "embedded", "--out", tmp_path / "two")
    assert two.exit_code == 2
    assert "--encode names two bi-encoders; an index has one vector for each chunk" in two.err


def test_a_codec_needs_token_vectors(farrank: Farrank, tmp_path: Path, tiny_rankers: dict[str, Path]) -> None:
    given = collection(tmp_path / "a.jsonl", "x")
    source = tiny_rankers["biencoder"]
    for flags, message in (
        (("--tokens", source), "index: --codec needs --encode"),
        (("--encode", source), f"--encode {source}: {source}: is of family biencoder; only token vectors"),
    ):
        outcome = farrank("index", given, *flags, "--codec", "int8", "--out", tmp_path / "out")
        assert outcome.exit_code == 2
        assert message in outcome.err
