"""Parity of published graphs with their model's weights, measured once and stored next to them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import DIGEST, ExportParity, ExportPrecision, sealed
from farrank_rankers.json_values import read_fields, read_json

MEASURED = "farrank-parity.json"
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """One runtime's scores of one published graph, compared with those of the weights in torch, fp32.

    `version` is that of the graph's files, the model's spec and tokenizer: a graph whose file changed counts
    as not measured. `weights_digest` is the weights'. `beyond` says how the scores exceed their bound, None
    if they are within it; `parity` is None if scores were NaN.
    """

    file: str
    runtime: str
    precision: ExportPrecision
    version: str
    weights_digest: str
    parity: ExportParity | None
    beyond: str | None = None


def read_measured(folder: Path) -> list[MeasuredFile]:
    """Read the measurements of a folder's published graphs; empty if there are none.

    Raises: ExportError naming the file if it has changed since it was written.
    """
    path = folder / MEASURED
    if not path.is_file():
        return []
    values = read_json(path)
    anew = f"delete it, and farrank rankers measure {folder} measures again"
    if values.pop("format", None) != _FORMAT or not isinstance(values.get("measured"), list):
        raise ExportError(f"{path} has a format that this version of Farrank does not read; {anew}")
    if values.pop(DIGEST, None) != sealed(values)[DIGEST]:
        raise ExportError(f"{path} has changed since it was written; {anew}")
    return [read_fields(MeasuredFile, each, str(path), ExportError) for each in values["measured"]]


def write_measured(folder: Path, measured: Sequence[MeasuredFile]) -> Path:
    """Write the measurements, replacing earlier ones.

    Raises: ExportError naming the file if it cannot be written.
    """
    path = folder / MEASURED
    values = sealed({"measured": [asdict(each) for each in measured]})
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(json.dumps({"format": _FORMAT} | values, indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}") from error
    return path
