"""optimum in our exports: its tracer, its graph optimisations, its quantization for this processor.

It needs transformers 4.57 and so a separate environment: see docs/decisions/0031.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch

from farrank_exporters.optimum_here import AskedExporter, Level, check_installed
from farrank_exporters.plain_graph import encoder_around, plain_output, trace_plain, why_not_plain
from farrank_exporters.trace import OPSET, quiet, trace_aggregator
from farrank_rankers.backbones.forms import dense_attention
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import Exporter, Graph
from farrank_rankers.exports.published_files import Instructions, processor_instructions
from farrank_rankers.ranker import Ranker

_TASKS = {"logits": "text-classification", "last_hidden_state": "feature-extraction"}


def chosen_exporter(asked: AskedExporter, ranker: Ranker, *, prefers_optimum: bool = False) -> Exporter:
    """Choose the tracer of a ranker's model: as asked, else optimum if preferred and able, else torch.

    See docs/decisions/0034.
    Raises: ExportError if optimum is asked for or preferred and not installed, or asked for and unable to
    trace the ranker, with the reason.
    """
    if asked == "torch" or (asked == "auto" and not prefers_optimum):
        return "torch"
    reason = why_not_optimum(ranker)
    if reason is None:
        return "optimum"
    if asked == "optimum":
        raise ExportError(f"--exporter optimum: {reason}; --exporter torch traces every ranker")
    return "torch"


def why_not_optimum(ranker: Ranker) -> str | None:
    """Say why optimum cannot trace a ranker's model; None if it can.

    Raises: ExportError if optimum is not installed.
    """
    if reason := why_not_plain(ranker):
        return reason
    check_here("--exporter optimum")
    from optimum.exporters.tasks import TasksManager

    kind, task = ranker.encoder.facts.architecture, _TASKS[plain_output(ranker)]
    try:
        known = TasksManager.get_supported_tasks_for_model_type(kind, "onnx", library_name="transformers")
    except KeyError:
        return f"optimum knows no architecture {kind}"
    return None if task in known else f"optimum has no graph of {kind} for {task}"


def check_here(what: str) -> None:
    """Import optimum's exporters, which registers their architectures.

    Raises: ExportError if they are not installed, saying that `what` needs them.
    """
    check_installed(what)
    import optimum.exporters.onnx.model_configs  # noqa: F401


def trace_with_optimum(
    ranker: Ranker, folder: Path, *, half: bool = False, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Graph]:
    """Trace like `trace_ranker`, but make the encoder from optimum's graph; in fp32 only.

    Raises: ExportError as `trace_ranker`; ValueError if `half`.
    """
    if half:
        raise ValueError("half is True; optimum writes fp16 only on a GPU")
    progress("tracing the encoder with optimum")
    encoder = folder / "encoder.onnx"
    export_plain("optimum", ranker, encoder)
    graph = encoder_around(encoder, ranker)
    progress("tracing the aggregator")
    return {"encoder": graph, "aggregator": trace_aggregator(ranker, folder)}


def export_plain(exporter: Exporter, ranker: Ranker, path: Path) -> None:
    """Trace a ranker's model, which must be plain. Raises: ExportError if it cannot be traced."""
    if exporter == "torch":
        trace_plain(ranker, path)
    else:
        _trace(ranker, path)


def _trace(ranker: Ranker, path: Path) -> None:
    from optimum.exporters.onnx import export
    from optimum.exporters.tasks import TasksManager

    ranker.eval()
    model: Any = ranker.encoder.backbone
    task = _TASKS[plain_output(ranker)]
    with _named("optimum cannot trace it"), torch.no_grad(), dense_attention(model):
        constructor = TasksManager.get_exporter_config_constructor(
            "onnx", model=model, task=task, library_name="transformers"
        )
        export(model, constructor(model.config), path, opset=OPSET)


def optimise(graph: Path, level: Level, config: Any) -> None:
    """Replace a plain graph by its optimised one.

    `config` is transformers' configuration of the model. From O2 on the graph has operators that only ONNX
    Runtime knows; O3 approximates GELU; O4 is O3 in fp16, for a GPU.
    Raises: ExportError if optimum is not installed, does not know the architecture, or fails.
    """
    check_here(f"--optimize {level}")
    from optimum.onnxruntime import AutoOptimizationConfig, ORTOptimizer

    with TemporaryDirectory(dir=graph.parent) as scratch, _named(f"--optimize {level}"):
        optimizer = ORTOptimizer([graph], config)
        settings = AutoOptimizationConfig.with_optimization_level(level, for_gpu=level == "O4")
        optimizer.optimize(settings, scratch, file_suffix="")
        _take(Path(scratch), graph)


# Instructions as optimum names them, best first, with the customary name of a graph quantized for them.
QUANTIZED_FILES: Mapping[Instructions, str] = {
    "avx512_vnni": "model_qint8_avx512_vnni.onnx",
    "avx512": "model_qint8_avx512.onnx",
    "avx2": "model_quint8_avx2.onnx",
    "arm64": "model_qint8_arm64.onnx",
}


def best_instructions() -> Instructions:
    """Name this processor's best instructions. Raises: ExportError if it has none of them."""
    here = processor_instructions()
    for name in QUANTIZED_FILES:
        if name in here:
            return name
    raise ExportError(f"this processor has none of {', '.join(QUANTIZED_FILES)}: int8 cannot be made for it")


def quantize(graph: Path, instructions: Instructions) -> None:
    """Replace a plain graph by one with int8 weights and activations rounded at run time.

    Raises: ExportError if optimum is not installed, or fails.
    """
    check_here("--layout optimum --precision int8")
    from optimum.onnxruntime import AutoQuantizationConfig, ORTQuantizer

    with TemporaryDirectory(dir=graph.parent) as scratch, _named("int8"):
        settings = getattr(AutoQuantizationConfig, instructions)(is_static=False, per_channel=False)
        large = any(each.data_location == each.EXTERNAL for each in _weights(graph))
        ORTQuantizer(graph).quantize(settings, scratch, file_suffix="", use_external_data_format=large)
        _take(Path(scratch), graph)


def _weights(graph: Path) -> list[onnx.TensorProto]:
    return list(onnx.load(graph, load_external_data=False).graph.initializer)


def _take(made: Path, graph: Path) -> None:
    """Put a graph in another's place, with its weights if they are in a separate file."""
    for path in graph.parent.glob(f"{graph.name}[._]data"):
        path.unlink()
    for path in made.glob(f"{graph.name}*"):
        shutil.move(path, graph.parent / path.name)


@contextmanager
def _named(doing: str) -> Iterator[None]:
    """Silence optimum, and turn any exception into an ExportError."""
    with quiet("optimum"), quiet("onnxruntime"), quiet("torch.onnx"):
        try:
            yield
        except ExportError:
            raise
        except Exception as error:  # optimum's own, onnxruntime's, or from inside the model
            lines = str(error).strip().splitlines()
            raise ExportError(f"{doing}: {lines[0] if lines else repr(error)}") from error
