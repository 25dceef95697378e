"""The judged questions of the demo hold together, and are worded apart from the documents."""

import importlib
import importlib.util
import pydoc
import re
import sys
import warnings
from collections import Counter
from functools import cache
from importlib.resources import files
from pydoc_data.topics import topics

import pytest
from farrank_demo.questions import load_qrels, load_questions

RUN_LENGTH = 5
QUESTIONS = {question.query_id: question.text for question in load_questions()}
QRELS = load_qrels()
JUDGED_DOCUMENTS = sorted({doc_id for judged in QRELS.values() for doc_id in judged})


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + RUN_LENGTH]) for at in range(len(words) - RUN_LENGTH + 1)}


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@cache
def runs_of_document(doc_id: str) -> frozenset[tuple[str, ...]]:
    """The document's runs of words; none where this platform lacks the module."""
    if doc_id.startswith("topic:"):
        return frozenset(runs_of_words(topics[doc_id.removeprefix("topic:")]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module(doc_id)
        except ImportError:
            return frozenset()
        return frozenset(runs_of_words(pydoc.plain(pydoc.render_doc(module))))


def test_there_are_enough_questions() -> None:
    assert len(QUESTIONS) >= 60


def test_ids_and_texts_are_unique() -> None:
    questions = load_questions()
    assert len({question.query_id for question in questions}) == len(questions)
    assert len({question.text.lower() for question in questions}) == len(questions)


def test_questions_are_short_and_long() -> None:
    lengths = [len(text.split()) for text in QUESTIONS.values()]
    assert min(lengths) >= 3
    assert max(lengths) <= 40
    assert max(lengths) >= 3 * min(lengths)


def test_the_judgements_are_of_these_questions() -> None:
    assert QRELS.keys() == QUESTIONS.keys()


@pytest.mark.parametrize("query_id", QUESTIONS)
def test_a_document_answers_every_question(query_id: str) -> None:
    assert 2 in QRELS[query_id].values()


def test_grades_are_one_or_two() -> None:
    assert {grade for judged in QRELS.values() for grade in judged.values()} == {1, 2}


def test_no_document_is_judged_twice_for_one_question() -> None:
    lines = files("farrank_demo").joinpath("qrels.txt").read_text(encoding="utf-8").splitlines()
    pairs = Counter(tuple(line.split(" ")[0:3:2]) for line in lines)
    assert [pair for pair, count in pairs.items() if count > 1] == []


@pytest.mark.parametrize("doc_id", JUDGED_DOCUMENTS)
def test_judged_documents_exist(doc_id: str) -> None:
    if doc_id.startswith("topic:"):
        assert doc_id.removeprefix("topic:") in topics
    else:
        # A platform may lack a module (fcntl, posix); the interpreter still knows its name.
        assert is_installed(doc_id) or doc_id in sys.stdlib_module_names


@pytest.mark.parametrize("query_id", QUESTIONS)
def test_questions_are_not_copied_from_the_documents(query_id: str) -> None:
    asked = runs_of_words(QUESTIONS[query_id])
    copied = {doc_id: asked & runs_of_document(doc_id) for doc_id in QRELS[query_id]}
    assert {doc_id: runs for doc_id, runs in copied.items() if runs} == {}
