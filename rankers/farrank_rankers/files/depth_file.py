"""The calibrated plan of an artifact's adaptive depth, in a file beside `ranker.json`.

The plan there has priority over that of `ranker.json`, which stays as it was: exports are made for that file.
"""

import json
from dataclasses import asdict
from pathlib import Path

from farrank_rankers.depth.plan import DepthPlan
from farrank_rankers.errors import SpecError, naming
from farrank_rankers.json_values import read_fields, read_json

DEPTH_FILE = "depth.json"


def read_plan(folder: Path) -> DepthPlan | None:
    """Read an artifact's calibrated plan; None if it has none.

    Raises: SourceError naming the file if it is damaged; SpecError naming file, field, value and limit.
    """
    path = folder / DEPTH_FILE
    if not path.exists():
        return None
    with naming(path):
        return read_fields(DepthPlan, read_json(path), "the plan", SpecError)


def write_plan(folder: Path, plan: DepthPlan) -> None:
    """Write an artifact's plan atomically. Raises: OSError."""
    unfinished = folder / f".{DEPTH_FILE}.unfinished"
    unfinished.write_text(json.dumps(asdict(plan), indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / DEPTH_FILE)
