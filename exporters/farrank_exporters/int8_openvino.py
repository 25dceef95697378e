"""The encoder in int8 for OpenVINO: first all its products, then fewer if the rankings require it."""

import logging
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from farrank_exporters.parity import MIN_TAU, Scores, TextScores, kendall_tau
from farrank_exporters.texts import SampleTexts
from farrank_exporters.trace import quiet
from farrank_rankers.exports.manifest import Quantization
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderBatch
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import EncoderGraph, GraphFiles, RunGraph
from farrank_runtimes.openvino_runtime import FloatType, OpenVinoGraph, by_place, float_type_for
from farrank_runtimes.runtime import Capabilities

if TYPE_CHECKING:
    import openvino

OPENVINO_FILE = "encoder.xml"

# SmoothQuant divides an input's dimensions by their largest values to this power, and multiplies the weights
# by the same factors (Xiao et al., "SmoothQuant", ICML 2023). The first is NNCF's default; the better one
# depends on the ranker: MiniLM-L6 as a bi-encoder keeps a tau of 0.968 with the first and 0.954 with the
# second, as a cross-encoder with a random head 0.950 and 0.960.
ALPHAS = (0.95, 0.7)
# Other texts lose a little more than the texts by which the products are chosen.
ROOM = 0.8

# Products are chosen on the beginnings of this number of documents.
CHOOSING_DOCUMENTS, CHOOSING_WORDS = 16, 300
CHOOSING_TOKENS = 4096

TIMED_INPUTS, TIMED_ROUNDS = 16, 5


class OpenVinoInt8:
    """Writes a traced encoder as OpenVINO's graph in int8, in several ways, one after the other."""

    def __init__(
        self,
        traced: Path,
        aggregator: Path,
        folder: Path,
        reader: Reader,
        texts: SampleTexts,
        inputs: Sequence[EncoderBatch],
    ) -> None:
        """Take the encoder as traced in fp32 and the aggregator; graphs are written into `folder`.

        `inputs` calibrate the graphs; `texts` choose the products. Raises: ValueError if `inputs` is empty.
        """
        if not inputs:
            raise ValueError("inputs is empty; calibration needs at least 1")
        self._traced, self._aggregator, self._folder = traced, aggregator, folder
        self._reader, self._inputs = reader, inputs
        some = texts.documents[:: max(1, len(texts.documents) // CHOOSING_DOCUMENTS)]
        beginnings = tuple(" ".join(text.split()[:CHOOSING_WORDS]) for text in some[:CHOOSING_DOCUMENTS])
        self._choosing = SampleTexts(texts.queries, beginnings)

    def ways(self) -> Iterator[Quantization]:
        """Write the fastest graph, and at each further step one that is closer to the ranker.

        Embeddings are never rounded: int8 does not speed up a look-up.
        """
        for alpha in ALPHAS:
            rounded = self._write(self._quantized(alpha))
            yield Quantization("openvino", f"all products, SmoothQuant at {alpha:g}", len(rounded))
        fastest = self._traced.with_name(f"fastest-{OPENVINO_FILE}")
        for suffix in (".xml", ".bin"):
            shutil.copyfile(self._folder / f"encoder{suffix}", fastest.with_suffix(suffix))
        kept = self._write(self._quantized(ALPHAS[0], controlled=True))
        yield Quantization(
            "openvino",
            "without the products that cost rankings most",
            len(rounded),
            left=tuple(sorted(rounded - kept)),
            speed=self._speed_over(fastest),
        )

    def _quantized(self, alpha: float, *, controlled: bool = False) -> "openvino.Model":
        with quiet("nncf"):
            import nncf
            import openvino
            from openvino.passes import ConstantFolding, Manager

            nncf.set_log_level(logging.ERROR)
            model = openvino.Core().read_model(str(self._traced))
            # NNCF silently leaves weights in fp32 that are not constants; folding their transpositions helps.
            folding = Manager()
            folding.register_pass(ConstantFolding())
            folding.run_passes(model)
            look_ups = [op.get_friendly_name() for op in model.get_ops() if op.get_type_name() == "Gather"]
            names = [item.any_name for item in model.inputs]
            feeds = [{name: getattr(batch, name) for name in names} for batch in self._inputs]
            how: dict[str, Any] = {
                "model_type": nncf.ModelType.TRANSFORMER,
                # Symmetric ranges for weights, asymmetric ones for activations.
                "preset": nncf.QuantizationPreset.MIXED,
                "subset_size": len(feeds),
                "ignored_scope": nncf.IgnoredScope(names=look_ups),
            }
            smoothed = nncf.AdvancedQuantizationParameters(
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=alpha)
            )
            if not controlled:
                return nncf.quantize(model, nncf.Dataset(feeds), advanced_parameters=smoothed, **how)
            rankings = _Rankings(self._traced, self._aggregator, self._reader, self._choosing)
            return nncf.quantize_with_accuracy_control(
                model,
                nncf.Dataset(feeds),
                nncf.Dataset(self._choosing.queries),
                rankings.taus,
                max_drop=ROOM * (1 - MIN_TAU["int8"]),
                advanced_quantization_parameters=smoothed,
                advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                    # One at a time: each trial uses all threads.
                    num_ranking_workers=1
                ),
                **how,
            )

    def _write(self, model: "openvino.Model") -> set[str]:
        """Write the graph; return the names of the products computed in int8."""
        import openvino

        openvino.save_model(model, str(self._folder / OPENVINO_FILE), compress_to_fp16=False)
        return products_in_int8(model)

    def _speed_over(self, other: Path) -> float:
        """Give the written graph's speed relative to another's."""
        longest = sorted(self._inputs, key=lambda batch: batch.input_ids.shape[1])[-TIMED_INPUTS:]
        feeds = [
            {name: torch.from_numpy(array) for name, array in batch._asdict().items()} for batch in longest
        ]
        graphs = [_opened(path, float_type_for("int8")) for path in (self._folder / OPENVINO_FILE, other)]

        def seconds(graph: OpenVinoGraph) -> float:
            started_s = time.perf_counter()
            for feed in feeds:
                graph.run(feed)
            return time.perf_counter() - started_s

        for graph in graphs:
            seconds(graph)  # the first run of a shape is slower
        rounds = [[seconds(graph) for graph in graphs] for _ in range(TIMED_ROUNDS)]
        return statistics.median(others / own for own, others in rounds)


def products_in_int8(model: "openvino.Model") -> set[str]:
    """Name a graph's products with both factors rounded to 8 bits."""
    return {
        op.get_friendly_name()
        for op in model.get_ops()
        if op.get_type_name() == "MatMul" and all(map(_is_rounded, op.input_values()))
    }


# Operators between a factor of a product and its rounding: a weight's scales, another layout.
_BETWEEN = frozenset({"Convert", "Multiply", "Reshape", "Subtract", "Transpose"})


def _is_rounded(value: "openvino.Output") -> bool:
    node = value.get_node()
    while node.get_type_name() in _BETWEEN:
        node = node.input_value(0).get_node()
    return node.get_type_name() == "FakeQuantize" or node.get_element_type().get_type_name() in ("i8", "u8")


def _opened(graph: Path, float_type: FloatType) -> OpenVinoGraph:
    return OpenVinoGraph(graph, float_type, usable_cores())


class _Rankings:
    """Compares the rankings of an encoder's graphs with its rankings in fp32, on the same texts."""

    def __init__(self, encoder: Path, aggregator: Path, reader: Reader, texts: SampleTexts) -> None:
        self._reader, self._texts = reader, texts
        self._files = GraphFiles(encoder, aggregator, "int8", reader.max_input_tokens, reader.pad_id)
        self._aggregate = _opened(aggregator, "f32").run
        self._expected = self._scores(_opened(encoder, "f32").run, texts.queries)

    def taus(self, compiled: "openvino.CompiledModel", queries: Sequence[str]) -> tuple[float, list[float]]:
        """Give Kendall's tau with fp32, the mean and each query's, in the form that NNCF requires."""

        def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
            found = compiled(by_place(compiled, inputs))
            return [torch.from_numpy(np.array(found[output])) for output in compiled.outputs]

        asked = list(queries)
        scores = self._scores(run, asked)
        # Scores that are not finite give no ranking.
        taus = [
            kendall_tau(self._expected[query], scores[query]) if np.isfinite(scores[query]).all() else -1.0
            for query in asked
        ]
        return float(np.mean(taus)), taus

    def _scores(self, run: RunGraph, queries: Sequence[str]) -> dict[str, Scores]:
        most = Capabilities("openvino", "cpu", "int8", CHOOSING_TOKENS)
        runtime = ExportedRuntime(EncoderGraph(run, most), self._aggregate, self._files)
        documents = TextScores(runtime, self._reader, self._texts.documents)
        return {query: documents.score(query) for query in queries}
