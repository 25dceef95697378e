"""A small collection with judged queries, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


TEXTS = {
    "rivers": "The river rises in the mountains and reaches the sea. " * 60,
    "ships": "A ship sails over the sea towards the harbour. " * 30,
    "bread": "Bread is baked from flour, water, salt and yeast. " * 5,
    "towers": "The tower stands over the harbour and its ships.",
    "salt": "Salt is won from the sea. " * 20,
}
QUERIES = {"q1": "where does the river end", "q2": "what is bread made of", "q3": "ships in the harbour"}
QRELS = {"q1": {"rivers": 2, "ships": 0}, "q2": {"bread": 1, "salt": 1}, "q3": {"ships": 2, "towers": 1}}
CANDIDATES = {
    "q1": ["ships", "rivers", "towers"],
    "q2": ["salt", "bread", "rivers", "ships"],
    "q3": ["ships", "towers", "salt", "rivers"],
    "unjudged": ["bread", "salt"],
}


@dataclass(frozen=True)
class Files:
    """The test set on disk."""

    candidates: Path
    queries: Path
    collection: Path
    qrels: Path

    def flags(self) -> list[str]:
        """Return the whole test set as the command's flags."""
        return [
            f"--candidates={self.candidates}",
            f"--queries={self.queries}",
            f"--collection={self.collection}",
            f"--qrels={self.qrels}",
        ]
