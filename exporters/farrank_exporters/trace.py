"""Write a ranker's encoder and aggregator as ONNX graphs with dynamic batch and length."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from farrank_exporters.examples import aggregator_example, encoder_example
from farrank_exporters.graphs import (
    AGGREGATOR_OUTPUTS,
    ENCODER_OUTPUTS,
    AggregatorGraph,
    EncoderGraph,
    half_precision,
)
from farrank_rankers.backbones.dense_attention import dense_attention
from farrank_rankers.backbones.first_token import last_layer_for_first_tokens
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import Graph
from farrank_rankers.ranker import Ranker

# From 23 on attention is one operator, which ONNX Runtime's dynamic quantization did not know; no quantizer
# that is used now has been tried on it.
OPSET = 20

# A protobuf message ends at 2 GiB; weights of more than this go into a file beside the graph.
INLINE_BYTES = 2**30

# How many leading dimensions of each input have any size; those after them belong to the model.
_DYNAMIC_DIMENSIONS = {
    "input_ids": 2,
    "roles": 3,
    "token_type_ids": 2,
    "vectors": 2,
    "chunk_mask": 2,
    "query_vectors": 1,
    "query_roles": 2,
}


@dataclass(frozen=True, slots=True)
class Traced:
    """What was written: the graphs by name, and their operator set."""

    graphs: Mapping[str, Graph]
    opset: int


def trace_ranker(
    ranker: Ranker, folder: Path, *, half: bool = False, progress: Callable[[str], None] = lambda line: None
) -> Traced:
    """Trace a ranker, which must be on the CPU, into `encoder.onnx` and `aggregator.onnx`.

    With `half` the encoder's weights and arithmetic are fp16; features and aggregator are fp32 always.
    Raises: ExportError if the model does what a graph cannot, or a file cannot be written.
    """
    ranker.eval()
    progress("tracing the encoder")
    encoder = EncoderGraph(half_precision(ranker.encoder) if half else ranker.encoder)
    aggregator_inputs = aggregator_example(ranker)
    outputs = ENCODER_OUTPUTS if "roles" in aggregator_inputs else ENCODER_OUTPUTS[:1]
    with dense_attention(encoder.encoder.backbone), _nothing_in_vain(encoder.encoder):
        graphs = {"encoder": _trace(encoder, encoder_example(ranker), outputs, folder / "encoder.onnx")}
    progress("tracing the aggregator")
    aggregator = AggregatorGraph(ranker.aggregator)
    path = folder / "aggregator.onnx"
    graphs["aggregator"] = _trace(aggregator, aggregator_inputs, AGGREGATOR_OUTPUTS, path)
    return Traced(graphs, OPSET)


def _nothing_in_vain(encoder: Encoder) -> AbstractContextManager[None]:
    """Leave out what a last layer computes for tokens that nobody reads."""
    return (
        last_layer_for_first_tokens(encoder.backbone) if encoder.reads_first_tokens_alone else nullcontext()
    )


def _trace(module: nn.Module, example: Mapping[str, Tensor], outputs: tuple[str, ...], path: Path) -> Graph:
    shapes = {name: _dynamic(name, tensor, example) for name, tensor in example.items()}
    weights = sum(tensor.nbytes for tensor in module.state_dict().values())
    with _quiet(), torch.no_grad():
        try:
            torch.onnx.export(
                module.eval(),
                kwargs=dict(example),
                f=path,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(example),
                output_names=list(outputs),
                dynamic_shapes=shapes,
                external_data=weights > INLINE_BYTES,
                # The optimiser takes what is smaller than 1e-8 for 0, with it the 1e-9 that keeps a cosine
                # of a vector of zeros from being NaN. Runtimes optimise on their own.
                optimize=False,
            )
        except ModuleNotFoundError:  # onnxscript, which torch imports only here
            raise
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error.strerror}") from error
        except Exception as error:  # anything may be raised from inside the model that is traced
            reason = str(error).strip().splitlines()
            raise ExportError(
                f"{path.stem}: the model cannot be traced: {reason[0] if reason else repr(error)}"
            ) from error
    written = onnx.load(path, load_external_data=False)
    # What the model does not look at is no input of its graph.
    return Graph(
        path.name,
        tuple(each.name for each in written.graph.input),
        tuple(each.name for each in written.graph.output),
    )


def _dynamic(name: str, tensor: Tensor, example: Mapping[str, Tensor]) -> dict[int, object]:
    count = _DYNAMIC_DIMENSIONS[name]
    if (name == "vectors" and "roles" in example) or (name == "query_vectors" and "query_roles" in example):
        count += 1  # the tokens'
    return dict.fromkeys(range(min(count, tensor.dim())), torch.export.Dim.DYNAMIC)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the exporter prints of its stages and warns about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
