"""Cross-validation: queries in parts, each tested with a ranker that was not trained on it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from farrank_training.errors import TrainingError
from farrank_trec.errors import InputError

# One part for the test, one to choose the best weights, and at least one for training.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Fold:
    """The queries that a ranker learns from, those that choose its best weights, and those that test it.

    Source: MacAvaney et al., "CEDR", SIGIR 2019, which trains on three of five parts of Robust04.
    """

    number: int
    training: frozenset[str]
    validation: frozenset[str]
    test: frozenset[str]


def divided(query_ids: Sequence[str], parts: int) -> list[list[str]]:
    """Divide queries into parts of nearly equal size; the division is always the same.

    Raises: TrainingError if there are too few parts or too few queries.
    """
    if not FEWEST <= parts <= len(query_ids):
        raise TrainingError(
            f"folds is {parts}; it must be at least {FEWEST} and at most the {len(query_ids)} judged queries"
        )
    shuffled = sorted(query_ids)
    Random(parts).shuffle(shuffled)
    return [shuffled[start::parts] for start in range(parts)]


def read_parts(path: Path, query_ids: Sequence[str]) -> list[list[str]]:
    """Read a published division: a JSON list with a list of query ids for each part.

    Judged queries that are in no part are left out.
    Raises: InputError if the file cannot be used, or names a query twice.
    """
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    lists = isinstance(parts, list) and all(isinstance(part, list) for part in parts)
    if not (lists and all(isinstance(each, str) for part in parts for each in part)):
        raise InputError(f"{path}: must be a JSON list of lists of query ids, which are strings")
    if len(parts) < FEWEST:
        raise InputError(f"{path}: {len(parts)} parts; there must be at least {FEWEST}")
    seen: set[str] = set()
    judged = set(query_ids)
    for number, part in enumerate(parts, start=1):
        for query_id in part:
            if query_id in seen:
                raise InputError(f"{path}: query {query_id!r} appears twice")
            seen.add(query_id)
        if not judged.intersection(part):
            raise InputError(f"{path}: no query of part {number} is judged")
    return [[query_id for query_id in part if query_id in judged] for part in parts]


def folds_of(parts: Sequence[Sequence[str]]) -> list[Fold]:
    """Test on each part in turn, validate on the next one, learn from all others."""
    folds = []
    for number, test in enumerate(parts):
        following = (number + 1) % len(parts)
        training = [part for place, part in enumerate(parts) if place not in (number, following)]
        folds.append(
            Fold(
                number + 1,
                frozenset(query_id for part in training for query_id in part),
                frozenset(parts[following]),
                frozenset(test),
            )
        )
    return folds
