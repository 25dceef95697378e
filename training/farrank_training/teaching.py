"""A ranker teaches: it scores documents of a training set once, and others learn from the scores."""

import json
import math
from collections.abc import Callable
from pathlib import Path

from farrank_rankers.ranker import Ranker
from farrank_training.batches import training_reader
from farrank_training.errors import TrainingError
from farrank_training.groups import TrainingSet


def teach(
    teacher: Ranker,
    training_set: TrainingSet,
    path: Path,
    *,
    negatives: int = 31,
    document_tokens: int | None = None,
    batch_size: int = 16,
    progress: Callable[[int], None] = lambda queries: None,
) -> int:
    """Write JSON lines as `jsonl_set` reads them, with a ranker's raw scores; return the number of documents.

    A line has all relevant documents of a query, and at most `negatives` others, drawn by the set's seed. The
    teacher reads as much of a document as training does by default, or `document_tokens`, `batch_size` chunks
    at once. The file appears only when it is complete.
    Raises: TrainingError if a query holds no token or a score is not finite; InputError if a text can no
        longer be read; OSError if the file cannot be written.
    """
    teacher.reader = training_reader(teacher.reader, document_tokens)
    unfinished, documents = path.with_name(f"{path.name}.unfinished"), 0
    try:
        with unfinished.open("w", encoding="utf-8") as lines:
            for index in range(len(training_set)):
                found = training_set.candidates(index, negatives)
                scores = _scores(teacher, found.query, (*found.positives, *found.negatives), batch_size)
                relevant = len(found.positives)
                line = {
                    "query": found.query,
                    "pos": found.positives,
                    "neg": found.negatives,
                    "pos_scores": scores[:relevant],
                    "neg_scores": scores[relevant:],
                }
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                documents += len(scores)
                progress(index + 1)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return documents


def _scores(teacher: Ranker, query: str, documents: tuple[str, ...], batch_size: int) -> list[float]:
    if not len(teacher.reader.read_query(query)):
        raise TrainingError(f"query {query!r} holds no token; it needs at least 1")
    scores = [each.score for each in teacher.score(query, documents, batch_size)]
    if not all(map(math.isfinite, scores)):
        raise TrainingError(
            f"a document of query {query!r} has the score nan; the teacher's weights are broken"
        )
    return scores
