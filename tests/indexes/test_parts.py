"""Parts added to a store have the same format as its first part, and its manifest covers all parts."""

import ctypes
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farrank_calls.errors import Reason, Unavailable
from farrank_indexes import token_store
from farrank_indexes.encodings_store import EncodedText, EncodingsStoreBuilder
from farrank_indexes.parts import FlatFile, MappedFile, PartWriter
from farrank_indexes.token_store import TokenStore, TokenStoreBuilder
from farrank_rankers.files.open import open_reader
from farrank_settings.errors import ConfigError

FACTS = {"format": 1, "tokenizers": "0.22.0"}


def part(store: Path, facts: Mapping[str, Any], first: int, state: Any = None) -> PartWriter:
    return PartWriter(store, "store.json", facts, first, ["values"], state)


def written(writer: PartWriter) -> None:
    writer.write("values", np.arange(3))
    writer.documents += 3
    writer.finish("it")


@pytest.mark.parametrize("other", [{"tokenizers": "0.23.0"}, {"format": 2}])
def test_a_part_that_would_be_written_otherwise_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    written(part(tmp_path, FACTS, 0))
    ((name, fact),) = other.items()
    message = rf"store\.json: its {name} is {FACTS[name]!r}, and the addition has {fact!r}"
    with pytest.raises(ConfigError, match=message):
        part(tmp_path, {**FACTS, **other}, 3)
    written(part(tmp_path, FACTS, 3))
    manifest = json.loads((tmp_path / "store.json").read_text())
    assert {name: manifest[name] for name in FACTS} == FACTS
    assert [each["first"] for each in manifest["parts"]] == [0, 3]


def test_an_interrupted_part_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    writer = part(tmp_path, FACTS, 0)
    state = json.loads(json.dumps(writer.flush()))
    writer.close()
    with pytest.raises(ConfigError, match=r"its tokenizers is '0\.22\.0', and the addition has '0\.23\.0'"):
        part(tmp_path, {**FACTS, "tokenizers": "0.23.0"}, 0, state)
    written(part(tmp_path, FACTS, 0, state))


@pytest.mark.parametrize("documents", [0, 3])
def test_a_part_goes_on_from_before_it_was_finished(tmp_path: Path, documents: int) -> None:
    """A build may be killed while Lucene merges, when its stores are finished."""
    written(part(tmp_path, FACTS, 0))
    writer = part(tmp_path, FACTS, 3)
    writer.write("values", np.arange(documents))
    writer.documents += documents
    state = writer.flush()
    writer.finish("it")
    written(part(tmp_path, FACTS, 3, state))
    parts = json.loads((tmp_path / "store.json").read_text())["parts"]
    assert [(each["first"], each["documents"]) for each in parts] == [(0, 3), (3, documents + 3)]
    assert parts[1]["files"]["values"]["bytes"] == 8 * (documents + 3)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"parts": 1}'])
def test_nothing_is_added_to_a_damaged_store(tmp_path: Path, content: str) -> None:
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(ConfigError, match=r"store\.json: is damaged"):
        part(tmp_path, FACTS, 0)


def test_tokens_of_another_version_of_tokenizers_are_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TokenStoreBuilder(open_reader("embedded").tokenizer)
    writer = store.open(tmp_path, 0, None)
    writer.add(["a text"])
    writer.finish("it")
    writer.close()
    with monkeypatch.context() as patch:
        patch.setattr(token_store, "version", lambda package: "99.0")
        with pytest.raises(ConfigError, match=r"its tokenizers is .*, and the addition has '99\.0'"):
            store.open(tmp_path, 1, None)
    assert TokenStore(tmp_path / store.key, "it").why_not(store.tokenizer, 9) == ""


class _Encoder:
    version, max_document_tokens = "v1", 9

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def encode(self, texts: object) -> list[EncodedText]:
        return [
            EncodedText(np.ones((1, 2), dtype=np.float32), np.array([[0, 1]], dtype=np.uint32), 1, 1, (0, 0))
        ]

    def close(self) -> None:
        pass


def test_encodings_of_another_precision_are_not_added(tmp_path: Path) -> None:
    writer = EncodingsStoreBuilder(_Encoder("fp32")).open(tmp_path, 0, None)
    writer.add(["x"])
    writer.finish("it")
    with pytest.raises(ConfigError, match="its precision is 'fp32', and the addition has 'bf16'"):
        EncodingsStoreBuilder(_Encoder("bf16")).open(tmp_path, 1, None)


def test_a_file_that_is_cut_short_while_it_is_read_costs_the_call_and_not_the_process(tmp_path: Path) -> None:
    path = tmp_path / "values.i64"
    np.arange(9000, dtype="<i8").tofile(path)
    rows = FlatFile(path, np.dtype("<i8"), 3)
    assert len(rows) == 3000
    assert rows[1:3].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert rows.at(2999).tolist() == [8997, 8998, 8999]
    assert rows[5:5].shape == (0, 3)
    os.truncate(path, 5000)
    assert rows.at(0).tolist() == [0, 1, 2]
    with pytest.raises(Unavailable, match=r"values\.i64 of the index was truncated while it was read") as cut:
        rows.at(2999)
    assert cut.value.reason is Reason.FIRST_STAGE_DOWN
    # Replacing the folder does not matter: an opened store stays unchanged.
    path.rename(tmp_path / "gone")
    assert rows.at(1).tolist() == [3, 4, 5]


@pytest.mark.parametrize("kernel", ["this", "before Linux 5.14", "another system"])
def test_a_mapped_file_that_is_cut_short_costs_the_call_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    class OldLibrary:
        @staticmethod
        def madvise(address: object, length: object, advice: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    if kernel != "this":
        old = OldLibrary() if kernel == "before Linux 5.14" else object()
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: old)
    path = tmp_path / "values.i1"
    (np.arange(30_000) % 100).astype("i1").tofile(path)
    rows = MappedFile(path, np.dtype("i1"), 3)
    assert len(rows) == 10_000
    assert rows[1:3].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert rows[9_999:].tolist() == [[97, 98, 99]]
    assert rows[5:5].shape == (0, 3)
    os.truncate(path, 5000)
    with pytest.raises(Unavailable, match=r"values\.i1 of the index was truncated while it was read") as cut:
        rows[9_000:]
    assert cut.value.reason is Reason.FIRST_STAGE_DOWN
    path.unlink()
    if kernel == "this":
        assert rows[0:1].tolist() == [[0, 1, 2]]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "values.i1"
    path.touch()
    rows = MappedFile(path, np.dtype("i1"), 3)
    assert len(rows) == 0
    assert rows[0:4].shape == (0, 3)


def test_a_mapped_file_is_no_memory_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "values.i1"
    np.ones(2**26, "i1").tofile(path)

    def anonymous_kib() -> int:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["RssAnon"].split()[0])

    before = anonymous_kib()
    rows = MappedFile(path, np.dtype("i1"), 128)
    assert int(rows[:].sum(dtype=np.int64)) == 2**26
    assert anonymous_kib() - before < 4096
