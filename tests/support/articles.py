"""Articles with questions in the format of SQuAD's files, made of random words."""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

WORDS = ["sea", "bread", "1984", "the", "of", "unbelievable", "harbour", "stone", "under", "old", "river"]


def write_articles(folder: Path, articles: int = 10, passages: int = 12, words: int = 60) -> Path:
    """Write `articles` articles of each split. Each passage has three questions that only it answers."""
    rng = Random(5)
    texts: list[dict[str, Any]] = []
    questions: list[dict[str, Any]] = []
    for split in ("train", "dev"):
        for article in range(articles):
            for place in range(passages):
                pid = f"{split[0]}{article:03}_{place:03}"
                said = rng.choices(WORDS, k=words)
                answers = [f"{name} {rng.randint(100, 999)}" for name in ("king", "queen", "bishop")]
                for answer in answers:
                    said.insert(rng.randint(0, len(said)), answer)
                text = " ".join(said)
                texts.append(
                    {
                        "pid": pid,
                        "split": split,
                        "article": f"{split[0]}{article:03}",
                        "pos": place,
                        "text": text,
                    }
                )
                questions += [
                    {
                        "qid": f"{pid}_{number:02}",
                        "split": split,
                        "text": f"which {answer} of the {rng.choice(WORDS)}",
                        "pid": pid,
                        "answers": [answer],
                        "answer_starts": [text.index(answer)],
                    }
                    for number, answer in enumerate(answers)
                ]
    for name, lines in (("passages", texts), ("queries", questions)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    return folder
