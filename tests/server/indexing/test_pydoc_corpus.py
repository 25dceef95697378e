"""The embedded corpus holds what one looks up, and nothing of the machine that rendered it."""

import os
import re
import sys
from pathlib import Path

import pytest

from farrank_server.indexing import pydoc_corpus
from farrank_server.indexing.index_builder import CollectionError, Document
from farrank_server.indexing.pydoc_corpus import read_pydoc


@pytest.fixture(scope="module")
def corpus() -> list[Document]:
    os.environ["FARRANK_TEST_SECRET"] = "do-not-render-me"
    try:
        return list(read_pydoc())
    finally:
        del os.environ["FARRANK_TEST_SECRET"]


@pytest.fixture(scope="module")
def texts(corpus: list[Document]) -> dict[str, str]:
    return {document.doc_id: document.text for document in corpus}


def test_there_are_some_hundreds_of_long_documents(corpus: list[Document], texts: dict[str, str]) -> None:
    assert 280 <= len(corpus) <= 500
    assert len(texts) == len(corpus)
    assert sum(map(len, texts.values())) / len(texts) > 10_000
    assert all(text.strip() for text in texts.values())


@pytest.mark.parametrize(
    ("doc_id", "phrase"),
    [
        ("os", "OS routines for NT or Posix"),
        ("builtins", "class bytearray(object)"),
        ("urllib.parse", "urljoin(base, url, allow_fragments=True)"),
        ("xml.etree.ElementTree", "class ElementTree"),
        ("importlib.metadata", "class Distribution"),
        ("collections.abc", "class MutableMapping"),
        ("concurrent.futures", "as_completed"),
        ("logging.handlers", "class RotatingFileHandler"),
        ("unittest.mock", "class MagicMock"),
        ("multiprocessing.pool", "class ThreadPool"),
        ("topic:for", 'The "for" statement is used to iterate'),
    ],
)
def test_what_one_looks_up_is_there(texts: dict[str, str], doc_id: str, phrase: str) -> None:
    assert phrase in texts[doc_id]


@pytest.mark.parametrize(
    "doc_id",
    ["antigravity", "this", "idlelib", "test", "_thread", "encodings.cp037", "json.decoder", "asyncio.locks"],
)
def test_jokes_tests_and_repetitions_are_not(texts: dict[str, str], doc_id: str) -> None:
    assert doc_id not in texts


def test_modules_come_first_and_in_order(corpus: list[Document]) -> None:
    topics = [document.doc_id for document in corpus if document.doc_id.startswith("topic:")]
    assert [document.doc_id for document in corpus][-len(topics) :] == sorted(topics)
    tops = [document.doc_id for document in corpus if re.fullmatch(r"\w+", document.doc_id)]
    assert tops == sorted(tops)


def test_nothing_differs_from_run_to_run(corpus: list[Document]) -> None:
    again = list(read_pydoc())
    assert [one.doc_id for one in again] == [one.doc_id for one in corpus]
    assert [one.doc_id for one, other in zip(again, corpus, strict=True) if one != other] == []


def test_nothing_of_this_machine_shows(texts: dict[str, str]) -> None:
    traces = [sys.prefix, str(Path(__file__).parents[3]), "do-not-render-me", " at 0x"]
    found = {doc_id: trace for doc_id, text in texts.items() for trace in traces if trace in text}
    assert found == {}


def test_a_caller_may_stop_early() -> None:
    documents = read_pydoc()
    assert next(documents).text
    del documents


def test_a_failure_of_the_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import json, sys\nprint(json.dumps(['a', 'text']))\nsys.exit(3)\n")
    monkeypatch.setattr(pydoc_corpus, "_SCRIPT", script)
    with pytest.raises(CollectionError, match="ended with 3"):
        list(read_pydoc())
