"""Whole articles of SQuAD with questions, and the places of their answers in them."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its article, and the characters of its answers there, as each annotator marked them."""

    text: str
    article: str
    answers: Sequence[Span]

    def survives(self, spans: Sequence[Span]) -> bool:
        """Whether one of its answers lies whole in one of some spans of its article."""
        return any(start <= first and last <= end for start, end in spans for first, last in self.answers)


def read_articles(
    folder: Path, articles: int, questions: int, seed: int = 1
) -> tuple[dict[str, str], list[Question]]:
    """Draw articles of the development set, whole, and questions about them.

    `folder` holds passages.jsonl.gz {pid, split, article, pos, text} and queries.jsonl.gz {split, text, pid,
    answers, answer_starts}.
    """
    passages: dict[str, list[dict[str, Any]]] = {}
    for each in _lines(folder / "passages.jsonl.gz"):
        if each["split"] == "dev":
            passages.setdefault(each["article"], []).append(each)
    chance = random.Random(seed)
    names = chance.sample(sorted(passages), articles)
    texts, places = {}, {}
    for name in names:
        text = ""
        for each in sorted(passages[name], key=lambda passage: int(passage["pos"])):
            text += "\n\n" if text else ""
            places[each["pid"]] = name, len(text)
            text += each["text"]
        texts[name] = text
    asked = []
    for each in _lines(folder / "queries.jsonl.gz"):
        if each["pid"] in places:
            name, start = places[each["pid"]]
            pairs = zip(each["answer_starts"], each["answers"], strict=True)
            answers = [(start + at, start + at + len(answer)) for at, answer in pairs]
            asked.append(Question(each["text"], name, answers))
    return texts, chance.sample(asked, min(questions, len(asked)))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
