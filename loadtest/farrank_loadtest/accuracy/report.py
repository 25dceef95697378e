"""What one test set says about every model, as a file that is read back to make a table of several."""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from farrank_loadtest.accuracy.comparison import Cell, Evaluated, Row
from farrank_loadtest.errors import InputError


@dataclass(frozen=True, slots=True)
class Report:
    """A test set's table and how it came about.

    `queries` counts those averaged over; `notes` are sentences a reader of the figures must know; `inputs`
    says which files and which server they came from.
    """

    test_set: str
    queries: int
    alpha: float
    measures: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    inputs: Mapping[str, Any]

    def write_json(self, path: Path) -> None:
        """Write all of it."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def read_json(cls, path: Path) -> Self:
        """Read what `write_json` wrote.

        Raises: InputError if the file is something else.
        """
        try:
            fields = json.loads(path.read_text("utf-8"))
            rows = tuple(
                Row(
                    each["model"],
                    each["baseline"],
                    {
                        measure: Cell(**{**cell, "by_seed": tuple(cell["by_seed"])})
                        for measure, cell in each["cells"].items()
                    },
                )
                for each in fields["rows"]
            )
            return cls(
                **{
                    **fields,
                    "rows": rows,
                    "measures": tuple(fields["measures"]),
                    "notes": tuple(fields["notes"]),
                }
            )
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: not a report of `farrank loadtest accuracy` ({error})") from error


def write_per_query(path: Path, models: Sequence[Evaluated]) -> None:
    """Write a line for each model, seed and query: the values that the means and the tests came from."""
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        measures = list(models[0].seeds[0])
        writer.writerow(["model", "seed", "query_id", *measures])
        for model in models:
            for number, values in enumerate(model.seeds, start=1):
                for query in values[measures[0]]:
                    writer.writerow([model.name, number, query, *(values[each][query] for each in measures)])
