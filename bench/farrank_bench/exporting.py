"""The measured cross-encoders, whose heads are random, and their fastest exports."""

import json
from collections.abc import Mapping, Sequence
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
from farrank_rankers.files.open import open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

# A CPU's precisions, the fastest first. fp32 is exported only if neither of these can be.
FAST: Sequence[ExportPrecision] = ("int8", "bf16")


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """The same weights in two forms: as a Farrank artifact, and as a sequence classifier of transformers."""

    ranker: Ranker
    artifact: Path
    transformers: Path


def write_cross_encoder(folder: Path) -> CrossEncoder:
    """Write all-MiniLM-L6-v2 with a random head in both forms."""
    return _save_both(_one_chunk_reader(EMBEDDED), folder)


def write_random(folder: Path, config: Mapping[str, object]) -> CrossEncoder:
    """Write a model of a configuration with random weights in both forms. Its tokenizer is MiniLM's."""
    backbone = folder / "backbone"
    backbone.mkdir(parents=True)
    (backbone / "config.json").write_text(json.dumps(config), encoding="utf-8")
    open_reader(EMBEDDED).tokenizer.files.write(backbone)
    return _save_both(_one_chunk_reader(backbone, pretrained=False), folder)


def _one_chunk_reader(backbone: str | Path, *, pretrained: bool = True) -> Ranker:
    """Make a cross-encoder that reads one chunk of each document, as the peers do."""
    ranker = new_ranker(
        "cross-encoder",
        backbone,
        seed=1,
        pretrained=pretrained,
        window=MAX_DOCUMENT_TOKENS,
        stride=MAX_DOCUMENT_TOKENS,
        max_document_tokens=MAX_DOCUMENT_TOKENS,
        max_query_tokens=MAX_QUERY_TOKENS,
    )
    return ranker.eval()


def _save_both(ranker: Ranker, folder: Path) -> CrossEncoder:
    """Write a cross-encoder as an artifact and in transformers' format."""
    made = CrossEncoder(ranker, folder / "artifact", folder / "transformers")
    save_ranker(ranker, made.artifact)
    backbone = ranker.encoder.backbone
    if not isinstance(backbone, PreTrainedModel):
        raise AssertionError(f"{type(backbone).__name__} is none of transformers' classifiers")
    backbone.save_pretrained(made.transformers)
    ranker.reader.tokenizer.files.write(made.transformers)
    return made


def export_fast(ranker: Ranker, artifact: Path, *, unasked: bool = False) -> tuple[list[Export], list[Row]]:
    """Export into the ranker's artifact. Each precision gets a row: its parity, or why it was refused.

    With `unasked` exports have the bounds of `--export auto`.
    """
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
                ranker,
                artifact,
                "onnx",
                precision,
                measured=measured,
                calibration=calibration,
                unasked=unasked,
            )
        except ExportError as error:
            rows.append(Row(what, f"refused: {error}"))
            continue
        exports.append(export)
        taus = (
            f"{each.runtime}: Kendall's tau {each.kendall_tau:.4f} ({each.bound})"
            for each in export.manifest.parity
        )
        rows.append(Row(what, "; ".join(taus)))
        rows += [Row(f"{precision}, quantization", str(each)) for each in export.manifest.quantized]
    return exports, rows
