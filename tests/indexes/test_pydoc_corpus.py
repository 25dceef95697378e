"""The embedded corpus has the pages that users look up, and nothing from the machine that rendered it."""

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from farrank_indexes import pydoc_corpus
from farrank_indexes.document import CollectionError
from farrank_indexes.pydoc_corpus import read_pydoc


@pytest.fixture(scope="session")
def texts(python_documentation: dict[str, str]) -> dict[str, str]:
    return python_documentation


def test_there_are_some_hundreds_of_long_documents(texts: dict[str, str]) -> None:
    assert 280 <= len(texts) <= 500
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
def test_pages_that_users_look_up_exist(texts: dict[str, str], doc_id: str, phrase: str) -> None:
    assert phrase in texts[doc_id]


@pytest.mark.parametrize(
    "doc_id",
    ["antigravity", "this", "idlelib", "test", "_thread", "encodings.cp037", "json.decoder", "asyncio.locks"],
)
def test_jokes_tests_and_repetitions_are_not(texts: dict[str, str], doc_id: str) -> None:
    assert doc_id not in texts


def test_modules_come_first_and_in_order(texts: dict[str, str]) -> None:
    topics = [doc_id for doc_id in texts if doc_id.startswith("topic:")]
    assert list(texts)[-len(topics) :] == sorted(topics)
    tops = [doc_id for doc_id in texts if re.fullmatch(r"\w+", doc_id)]
    assert tops == sorted(tops)


def test_nothing_differs_from_run_to_run_and_by_environment(
    texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARRANK_TEST_SECRET", "do-not-render-me")
    again = [(document.doc_id, document.text) for document in read_pydoc()]
    assert [doc_id for doc_id, _ in again] == list(texts)
    assert [doc_id for doc_id, text in again if text != texts[doc_id]] == []
    assert not any("do-not-render-me" in text for text in texts.values())


def test_nothing_of_this_machine_shows(texts: dict[str, str]) -> None:
    traces = [sys.prefix, str(Path(__file__).parents[2]), " at 0x"]
    found = {doc_id: trace for doc_id, text in texts.items() for trace in traces if trace in text}
    # Some releases have addresses in the documentation's own examples.
    printed = {f"topic:{name}": " at 0x" for name, text in topics.items() if " at 0x" in text}
    assert found.items() <= printed.items()


def test_a_caller_may_stop_early() -> None:
    documents = read_pydoc()
    assert next(documents).text
    del documents


def test_a_failure_of_the_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import json, sys\nprint(json.dumps(['a', 'text']))\nsys.exit(3)\n")
    monkeypatch.setattr(pydoc_corpus, "_SCRIPT", script)
    with pytest.raises(CollectionError, match="failed with status 3"):
        list(read_pydoc())
