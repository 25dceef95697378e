"""The demo's judged questions are consistent, worded differently from the documents, and test only."""

import importlib.util
import re
import sys
from collections import Counter
from importlib.resources import files

import pytest

from farrank_demo.documentation_pairs import make_pairs
from farrank_demo.questions import load_qrels, load_questions

RUN_LENGTH = 5
QUESTIONS = {question.query_id: question.text for question in load_questions()}
QRELS = load_qrels()
JUDGED_DOCUMENTS = sorted({doc_id for judged in QRELS.values() for doc_id in judged})


@pytest.fixture(scope="session")
def judged_runs(python_documentation: dict[str, str]) -> dict[str, set[tuple[str, ...]]]:
    return {
        doc_id: runs_of_words(python_documentation[doc_id])
        for doc_id in JUDGED_DOCUMENTS
        if doc_id in python_documentation
    }


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + RUN_LENGTH]) for at in range(len(words) - RUN_LENGTH + 1)}


def is_made_for_another_platform(doc_id: str) -> bool:
    """Return whether the interpreter knows this module's name but lacks it (`fcntl` on Windows)."""
    return doc_id in sys.stdlib_module_names and importlib.util.find_spec(doc_id) is None


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
def test_judged_documents_are_in_the_corpus(doc_id: str, python_documentation: dict[str, str]) -> None:
    assert doc_id in python_documentation or is_made_for_another_platform(doc_id)


@pytest.mark.parametrize("query_id", QUESTIONS)
def test_questions_are_not_copied_from_the_documents(
    query_id: str, judged_runs: dict[str, set[tuple[str, ...]]]
) -> None:
    asked = runs_of_words(QUESTIONS[query_id])
    copied = {doc_id: asked & judged_runs.get(doc_id, set()) for doc_id in QRELS[query_id]}
    assert {doc_id: runs for doc_id, runs in copied.items() if runs} == {}


def test_no_query_of_the_training_is_a_judged_question(python_documentation: dict[str, str]) -> None:
    pairs = make_pairs(python_documentation)
    queries = {*pairs.train.values(), *pairs.dev.values()}
    assert len(pairs.train) > 500
    assert len(pairs.dev) > 50

    asked = {" ".join(re.findall(r"\w+", text.lower())) for text in QUESTIONS.values()}
    assert asked.isdisjoint(" ".join(re.findall(r"\w+", text.lower())) for text in queries)
    # No question contains another one, however its sentence continues.
    runs = {text: runs_of_words(text) for text in QUESTIONS.values()}
    assert not [text for text in queries for run in runs.values() if len(run & runs_of_words(text)) > 2]
