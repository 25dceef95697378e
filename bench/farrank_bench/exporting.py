"""Export a ranker in the precisions that may be the fastest, and say what came of each."""

from collections.abc import Sequence
from pathlib import Path

from farrank_bench.report import Row
from farrank_exporters.export import export_ranker
from farrank_exporters.texts import divide, python_documentation
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.exports.manifest import ExportPrecision
from farrank_rankers.ranker import Ranker

# What a CPU may serve, the fastest first; fp32 is exported only where neither of the others can be.
FAST: Sequence[ExportPrecision] = ("int8", "bf16")


def export_fast(ranker: Ranker, artifact: Path) -> tuple[list[Export], list[Row]]:
    """Export into the ranker's artifact. Each precision has a row: its parity, or why it was refused."""
    measured, calibration = divide(python_documentation(), "the topics of help()")
    exports: list[Export] = []
    rows: list[Row] = []
    for precision in (*FAST, "fp32"):
        if precision == "fp32" and exports:
            break
        print(f"  exporting {precision}", flush=True)
        what = f"export in {precision}, parity with torch in fp32"
        try:
            export = export_ranker(
                ranker, artifact, "onnx", precision, measured=measured, calibration=calibration
            )
        except ExportError as error:
            rows.append(Row(what, f"refused: {error}"))
            continue
        exports.append(export)
        parities = [
            f"{each.runtime}: Kendall's tau {each.kendall_tau:.4f} ({each.bound})"
            for each in export.manifest.parity
        ]
        rows.append(Row(what, "; ".join(parities)))
    return exports, rows
