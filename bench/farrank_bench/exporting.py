"""What contenders load: all-MiniLM-L6-v2 as a cross-encoder with a random head, and its fastest exports."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from farrank_bench.corpus_calls import MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS
from farrank_bench.report import Row
from farrank_exporters.export import export_ranker
from farrank_exporters.texts import divide, python_documentation
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.exports.manifest import ExportPrecision
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

# What a CPU may serve, the fastest first; fp32 is exported only where neither of the others can be.
FAST: Sequence[ExportPrecision] = ("int8", "bf16")


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """The same weights twice: as an artifact of ours, and as transformers saves a sequence classifier."""

    ranker: Ranker
    artifact: Path
    transformers: Path


def write_cross_encoder(folder: Path) -> CrossEncoder:
    """Write both forms. The ranker's documents are one chunk each, as peers read them."""
    ranker = new_ranker(
        "cross-encoder",
        EMBEDDED,
        seed=1,
        window=MAX_DOCUMENT_TOKENS,
        stride=MAX_DOCUMENT_TOKENS,
        max_document_tokens=MAX_DOCUMENT_TOKENS,
        max_query_tokens=MAX_QUERY_TOKENS,
    )
    return save_both(ranker, folder)


def save_both(ranker: Ranker, folder: Path) -> CrossEncoder:
    """Write a cross-encoder as an artifact and as transformers would."""
    made = CrossEncoder(ranker, folder / "artifact", folder / "transformers")
    save_ranker(ranker, made.artifact)
    backbone = ranker.encoder.backbone
    if not isinstance(backbone, PreTrainedModel):
        raise AssertionError(f"{type(backbone).__name__} is none of transformers' classifiers")
    backbone.save_pretrained(made.transformers)
    ranker.reader.tokenizer.files.write(made.transformers)
    return made


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
        told = (
            f"{each.runtime}: Kendall's tau {each.kendall_tau:.4f} ({each.bound})"
            for each in export.manifest.parity
        )
        rows.append(Row(what, "; ".join(told)))
        rows += [Row(f"{precision}, how it was made", str(each)) for each in export.manifest.quantized]
    return exports, rows
