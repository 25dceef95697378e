"""torch's exporter and optimum's on the same rankers: `python -m farrank_bench.exporters`.

It needs optimum, which requires the environment with transformers 4.57 (docs/decisions/0031). Speed does not
depend on the weights, but the effect of rounding does: graphs are measured whatever their parity is.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from farrank_bench.corpus_calls import encoder_inputs, make_calls
from farrank_bench.exporting import write_cross_encoder, write_random
from farrank_bench.modernbert import BASE
from farrank_bench.offline import RuntimeAlone, longest_first
from farrank_bench.report import PACKAGES, Command, Heading, Measure, Row
from farrank_bench.rounds import Contender, measure_rounds, whole
from farrank_exporters.export import export_ranker, open_runtime
from farrank_exporters.texts import SampleTexts, divide, python_documentation
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import ExportedRanker
from farrank_rankers.exports.manifest import Exporter, ExportParity, ExportPrecision
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker

NOTES = (
    "inputs of {calls} calls of 16 documents, longest first; all graphs and runtimes of a ranker take turns; "
    "medians of {rounds} rounds (smallest to largest), ratios computed round by round; parity with torch in "
    "fp32 over {queries} queries and {documents} documents of Python's documentation; nodes are those of the "
    "encoder's graph; modernbert has base's widths, deberta v3-small's widths and MiniLM's vocabulary, both "
    "{layers} layers and random weights; cross-encoder is all-MiniLM-L6-v2 with a random head"
)
# The published configuration of microsoft/deberta-v3-small, but the vocabulary.
DEBERTA = {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2ForSequenceClassification"],
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "pooler_hidden_size": 768,
    "pooler_hidden_act": "gelu",
    "pooler_dropout": 0,
    # As of trained weights: with the usual 0.02 all scores would be nearly the same.
    "initializer_range": 0.05,
    "pad_token_id": 0,
}
# Of each document. Calibration on whole windows takes minutes, and the speed of int8 does not depend on it.
CALIBRATION_WORDS = 40
TRACERS: Sequence[Exporter] = ("torch", "optimum")
PRECISIONS: Sequence[ExportPrecision] = ("fp32", "bf16", "int8")
# A random model of this size is made with the number of layers that the command names.
Make = Callable[[Path, int], Ranker]
RANKERS: Mapping[str, Make] = {
    "cross-encoder": lambda folder, layers: write_cross_encoder(folder).ranker,
    "modernbert": lambda folder, layers: write_random(folder, BASE | {"num_hidden_layers": layers}).ranker,
    "deberta": lambda folder, layers: write_random(folder, DEBERTA | {"num_hidden_layers": layers}).ranker,
    "biencoder": lambda folder, layers: open_ranker(EMBEDDED),
}
DEFAULT: Sequence[str] = ("cross-encoder", "modernbert", "deberta")


def main(arguments: Sequence[str] | None = None) -> int:
    """Export each ranker in every way, measure its graphs in turns, print the tables."""
    command = Command("farrank_bench.exporters", __doc__)
    command.sections(RANKERS, DEFAULT)
    for name, default, meaning in (
        ("rounds", 5, "rounds after one that is not counted"),
        ("calls", 3, "calls of 16 documents each, of one chunk where pairs are read"),
        ("layers", 6, "layers of ModernBERT and DeBERTa"),
        ("queries", 4, "queries of the parity"),
        ("documents", 12, "documents of the parity"),
    ):
        command.options.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (%(default)s)")
    given = command.parse(arguments)
    packages = (*PACKAGES, "optimum", "optimum-onnx", "onnxscript")
    heading = Heading("torch's exporter and optimum's", NOTES.format_map(vars(given)), packages)
    return command.report(heading, parts(given), given.out)


def parts(given: argparse.Namespace) -> Iterator[tuple[str, Measure]]:
    """Yield a section for each named ranker."""
    for name in given.sections:
        yield name, partial(compare, RANKERS[name], given)


def compare(make: Make, given: argparse.Namespace) -> list[Row]:
    """Make all graphs of a ranker, measure them in turns, and return a row for each and the ratios.

    Raises: PartlyFailed.
    """
    measured, calibration = divide(python_documentation(), "the topics of help()")
    few = SampleTexts(measured.queries[: given.queries], measured.documents[: given.documents])
    beginnings = tuple(" ".join(text.split()[:CALIBRATION_WORDS]) for text in calibration.documents)
    calibration = SampleTexts(calibration.queries, beginnings)
    with TemporaryDirectory(prefix="farrank-exporters-") as scratch:
        ranker = make(Path(scratch, "ranker"), given.layers)
        calls = make_calls(ranker.reader, given.calls, 16, seed=5, pairs=ranker.spec.plan == "pair")
        inputs = longest_first(encoder_inputs(ranker.reader, calls))
        contenders: dict[str, Contender] = {}
        facts: dict[str, str] = {}
        lengths = [each.tokens for each in inputs]
        rows = [Row("inputs", f"{len(lengths)} of {min(lengths)} to {max(lengths)} tokens")]
        for tracer in TRACERS:
            artifact = Path(scratch, tracer)
            save_ranker(ranker, artifact)
            for precision in PRECISIONS:
                print(f"  exporting {_named(precision, tracer)}", flush=True)
                try:
                    export = export_ranker(
                        ranker,
                        artifact,
                        "onnx",
                        precision,
                        measured=few,
                        calibration=calibration,
                        exporter=tracer,
                        allow_drift=True,
                    )
                except ExportError as error:
                    rows.append(Row(_named(precision, tracer), f"refused: {error}"))
                    continue
                exported = ExportedRanker(export, ranker.reader, ranker.version, ranker.encodings_version)
                rows += [
                    Row(f"{_named(precision, tracer)}, quantization", str(each))
                    for each in export.manifest.quantized
                ]
                for parity in export.manifest.parity:
                    name = _named(precision, tracer, parity.runtime)
                    contenders[name] = RuntimeAlone(open_runtime(parity.runtime, exported), inputs).score
                    facts[name] = f"{size_of(export.path('encoder', parity.runtime))}; {_fidelity(parity)}"
        found = measure_rounds(contenders, given.rounds)
    for name, fact in facts.items():
        speed = found.speed_row(name, name)
        rows.append(Row(name, f"{speed.measured} inputs/s; {fact}"))
    for name in facts:
        other = name.replace("torch", "optimum")
        if other != name and other in facts:
            what = name.replace("traced by torch", "optimum's speed over torch's")
            rows.append(found.ratio_row(other, name, what, form=".2f"))
    return whole(rows, found)


def _named(precision: str, tracer: str, runtime: str = "") -> str:
    return f"{precision}, traced by {tracer}" + (f", {runtime}" if runtime else "")


def size_of(graph: Path) -> str:
    """Count the nodes of an ONNX graph, and the MiB of a graph and its weights."""
    if graph.suffix == ".onnx":
        nodes = len(onnx.load(graph, load_external_data=False).graph.node)
        return f"{nodes} nodes, {graph.stat().st_size / 2**20:.1f} MiB"
    # OpenVINO's own format has the weights in a file of their own.
    size = sum(each.stat().st_size for each in (graph, graph.with_suffix(".bin")))
    return f"{size / 2**20:.1f} MiB"


def _fidelity(parity: ExportParity) -> str:
    return (
        f"scores off by {parity.max_difference:.1e} at most (spread {parity.spread:.2g}), "
        f"Kendall's tau {parity.kendall_tau:.4f}"
    )


if __name__ == "__main__":
    sys.exit(main())
