"""The demo's questions and their judgements, as packaged beside this module (see JUDGING.md)."""

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Question:
    """What a programmer asked."""

    query_id: str
    text: str


def _lines(name: str) -> list[str]:
    return files("farrank_demo").joinpath(name).read_text(encoding="utf-8").splitlines()


def load_questions() -> list[Question]:
    """Every question, in the order of the file."""
    questions = []
    for line in _lines("questions.tsv"):
        query_id, text = line.split("\t")
        questions.append(Question(query_id, text))
    return questions


def load_qrels() -> dict[str, dict[str, int]]:
    """Query id to judged document to grade: 2 answers the question, 1 helps in part.

    Raises:
        ValueError: a line is not four fields, or one document is judged twice for one question.
    """
    qrels: dict[str, dict[str, int]] = {}
    for line in _lines("qrels.txt"):
        query_id, _, doc_id, grade = line.split(" ")
        judged = qrels.setdefault(query_id, {})
        if doc_id in judged:
            raise ValueError(f"qrels.txt judges {doc_id} twice for {query_id}")
        judged[doc_id] = int(grade)
    return qrels
