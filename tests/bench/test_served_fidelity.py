import shutil
from pathlib import Path
from typing import Any

import pytest

from farrank_bench import exporting
from farrank_bench.exporting import export_fast
from farrank_bench.fidelity import fidelity_of_exports, fidelity_rows
from farrank_demo.questions import load_qrels
from farrank_exporters.export import export_ranker
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.files.open import open_ranker

# Every judged document of some judged questions, best first.
JUDGED = {
    query_id: {doc_id: float(grade) + number * 1e-3 for number, (doc_id, grade) in enumerate(grades.items())}
    for query_id, grades in load_qrels().items()
    if len(set(grades.values())) > 1
}


def test_the_same_ranking_is_within_every_bound() -> None:
    rows = fidelity_rows("openvino int8", "int8", JUDGED, JUDGED)
    assert [(row.measured, row.aim, row.reached) for row in rows] == [
        ("1.0000 (1.0000)", "at least 0.95", True),
        ("+0.0000", "within 0.01", True),
        ("1.000 (1.0), 0.0e+00, 0.0e+00", "", None),
    ]
    assert [row.aim for row in fidelity_rows("openvino bf16", "bf16", JUDGED, JUDGED)] == [
        "at least 0.98",
        "within 0.002",
        "",
    ]


def test_the_reverse_is_beyond_both() -> None:
    reverse = {query: {doc: -score for doc, score in scores.items()} for query, scores in JUDGED.items()}
    rows = fidelity_rows("openvino bf16", "bf16", JUDGED, reverse)
    assert [row.reached for row in rows] == [False, False, None]
    # A better nDCG is also a different ranking.
    again = fidelity_rows("openvino bf16", "bf16", reverse, JUDGED)
    assert [row.reached for row in again] == [False, False, None]


def test_fp32_is_shown_without_an_aim() -> None:
    assert {row.reached for row in fidelity_rows("onnx fp32", "fp32", JUDGED, JUDGED)} == {None}


def test_without_an_index_nothing_is_measured_and_it_says_so(tmp_path: Path) -> None:
    for index in (None, tmp_path / "none"):
        (row,) = fidelity_of_exports(index, tmp_path, 1, None, None)
        assert row.measured.startswith(f"not measured: --index is {index}")
        assert not list(tmp_path.iterdir())


def test_a_refused_precision_has_its_row_and_fp32_stands_in_for_all(
    tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_fp32(*args: Any, **options: Any) -> Export:
        if args[3] != "fp32":
            raise ExportError(f"{args[3]} is beyond its bound")
        return export_ranker(*args, **options)

    monkeypatch.setattr(exporting, "export_ranker", only_fp32)
    artifact = tmp_path / "firstp"
    shutil.copytree(tiny_rankers["firstp"], artifact)
    exports, rows = export_fast(open_ranker(artifact), artifact)
    assert [row.measured for row in rows[:2]] == [
        "refused: int8 is beyond its bound",
        "refused: bf16 is beyond its bound",
    ]
    assert rows[2].measured.startswith("onnx: Kendall's tau 1.0000 (max_difference <= ")
    assert [export.folder for export in exports] == [artifact / "exports" / "onnx-fp32"]
