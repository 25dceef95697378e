"""Write a ranker's encoder and aggregator as ONNX graphs with dynamic batch and length."""

import copy
import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.backbones.forms import dense_attention
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import Graph
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Chunk, EncoderInput

ENCODER_INPUTS = ("input_ids", "roles", "token_type_ids")
# The second output is the roles of token features. The name `roles` is already an input's.
ENCODER_OUTPUTS = ("vectors", "token_roles")
AGGREGATOR_OUTPUTS = ("scores", "chunk_scores")


class TraceableEncoder(nn.Module):
    """An encoder that returns its features as a tuple, with `vectors` in fp32 in any precision."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Shapes: (P, L) each -> vectors (P, F) or (P, S, F…) [, token_roles (P, S)]."""
        features: Features = self.encoder(input_ids, roles, token_type_ids)
        vectors = features.vectors.float()
        # Most encoders return the input `roles`; a value that is input and output would have two names.
        return (vectors,) if features.roles is None else (vectors, features.roles.clone())


class AggregatorGraph(nn.Module):
    """An aggregator with separate features: `roles` for token features only, a query in a dual plan only."""

    def __init__(self, aggregator: Aggregator[Any]) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(
        self,
        vectors: Tensor,
        chunk_mask: Tensor,
        roles: Tensor | None = None,
        query_vectors: Tensor | None = None,
        query_roles: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Shapes: (D, C, …), (D, C) [, (D, C, S)] [, (D, …) [, (D, Q)]] -> scores (D,), chunks' (D, C)."""
        query = None if query_vectors is None else Features(query_vectors, query_roles)
        result = self.aggregator.explain(Features(vectors, roles), chunk_mask, query)
        return result.scores, result.chunk_scores


QUERIES = ("how does a long query find its document", "which document", "what is a passage of evidence")
CHUNKS_OF_DOCUMENTS = (5, 2, 4)
CHUNK_TOKENS = 17
TEXT = (
    "a reranker reads the whole of a long document and says which of its passages decided, where a retriever "
    "saw a few words only"
)


def encoder_example(ranker: Ranker) -> dict[str, Tensor]:
    """Give two framed chunks by input name. Shapes: see `TraceableEncoder.forward`; P is 2."""
    inputs = _chunk_inputs(ranker, QUERIES[0], 2)
    return dict(zip(ENCODER_INPUTS, ranker.tensors(inputs), strict=True))


def aggregator_example(ranker: Ranker) -> dict[str, Tensor]:
    """Give the features of three documents from the ranker's own encoder, by input name.

    Shapes: see `AggregatorGraph.forward`; D is 3 and C is 5.
    """
    documents = [
        stacked(_encode(ranker, _chunk_inputs(ranker, query, count)))
        for query, count in zip(QUERIES, CHUNKS_OF_DOCUMENTS, strict=True)
    ]
    features, chunk_mask = batched(documents)
    example = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
    if ranker.spec.plan == "dual":
        reader = ranker.reader
        inputs = [reader.query_input(reader.read_query(query)) for query in QUERIES]
        queries = stacked(_encode(ranker, inputs))
        example |= {"query_vectors": queries.vectors, "query_roles": queries.roles}
    return {name: value for name, value in example.items() if value is not None}


def _chunk_inputs(ranker: Ranker, query: str, count: int) -> list[EncoderInput]:
    """Frame chunks of different lengths, independent of how the ranker splits documents."""
    reader = ranker.reader
    ids = np.resize(reader.tokenizer.ids(TEXT), CHUNK_TOKENS)
    asked = reader.read_query(query) if ranker.spec.plan == "pair" else None
    return [
        reader.chunk_input(asked, Chunk(index, ids[: CHUNK_TOKENS - index], 0, 0)) for index in range(count)
    ]


def _encode(ranker: Ranker, inputs: Sequence[EncoderInput]) -> list[Features]:
    with torch.no_grad():
        features: Features = ranker.encoder(*ranker.tensors(inputs))
        return features._replace(vectors=features.vectors.float()).rows()


# From opset 23 on attention is one operator, with which the quantizers have not been tried.
OPSET = 20

# A protobuf message has at most 2 GiB; larger weights go into a separate file.
INLINE_BYTES = 2**30


def trace_ranker(
    ranker: Ranker, folder: Path, *, half: bool = False, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Graph]:
    """Trace a ranker, which must be on the CPU, into `encoder.onnx` and `aggregator.onnx`; give the graphs.

    With `half` the encoder's weights and arithmetic are fp16; features and aggregator are always fp32.
    Raises: ExportError if the model cannot be traced, or a file cannot be written.
    """
    progress("tracing the encoder")
    encoder = trace_encoder(ranker, folder, half=half)
    progress("tracing the aggregator")
    return {"encoder": encoder, "aggregator": trace_aggregator(ranker, folder)}


def trace_encoder(ranker: Ranker, folder: Path, *, half: bool = False) -> Graph:
    """Trace a ranker's encoder into `encoder.onnx`, like `trace_ranker`."""
    ranker.eval()
    graph = TraceableEncoder(copy.deepcopy(ranker.encoder).half() if half else ranker.encoder)
    has_roles = _encode(ranker, _chunk_inputs(ranker, QUERIES[0], 1))[0].roles is not None
    outputs = ENCODER_OUTPUTS if has_roles else ENCODER_OUTPUTS[:1]
    with dense_attention(graph.encoder.backbone), graph.encoder.without_unread():
        return trace_module(graph, encoder_example(ranker), outputs, folder / "encoder.onnx")


def trace_aggregator(ranker: Ranker, folder: Path) -> Graph:
    """Trace a ranker's aggregator into `aggregator.onnx`, like `trace_ranker`."""
    ranker.eval()
    graph = AggregatorGraph(ranker.aggregator)
    return trace_module(graph, aggregator_example(ranker), AGGREGATOR_OUTPUTS, folder / "aggregator.onnx")


def trace_module(
    module: nn.Module,
    example: Mapping[str, Tensor],
    outputs: tuple[str, ...],
    path: Path,
    fixed: Collection[str] = (),
) -> Graph:
    """Trace a module, called with an example's tensors by name, into a file.

    All dimensions are dynamic except the last one of `fixed` tensors and of vectors.
    Raises: ExportError as `trace_ranker` does.
    """
    shapes = {
        name: dict.fromkeys(range(tensor.dim() - 1), torch.export.Dim.DYNAMIC)
        if name in fixed
        else _dynamic(name, tensor, example)
        for name, tensor in example.items()
    }
    weights = sum(tensor.nbytes for tensor in module.state_dict().values())
    # torch's cache of operators' shapes costs more than it saves when sizes are unknown.
    unremembered = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    with quiet("torch.onnx"), quiet("onnx_ir"), torch.no_grad(), unremembered:
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
                # The optimiser takes values below 1e-8 for 0, such as the 1e-9 that keeps the cosine of a
                # zero vector from being NaN. Runtimes optimise on their own.
                optimize=False,
            )
        except ModuleNotFoundError:  # onnxscript, which torch imports only here
            raise
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error.strerror}") from error
        except Exception as error:  # the traced model may raise anything
            reason = str(error).strip().splitlines()
            raise ExportError(
                f"{path.stem}: the model cannot be traced: {reason[0] if reason else repr(error)}"
            ) from error
    written = onnx.load(path, load_external_data=False)
    # The graph lacks inputs that the model does not read.
    return Graph(
        path.name,
        tuple(each.name for each in written.graph.input),
        tuple(each.name for each in written.graph.output),
    )


def _dynamic(name: str, tensor: Tensor, example: Mapping[str, Tensor]) -> dict[int, object]:
    """Make every dimension dynamic except a vector's own."""
    count = tensor.dim()
    if name.endswith("vectors"):
        roles = example.get(name.replace("vectors", "roles"))
        count = roles.dim() if roles is not None else {"vectors": 2, "query_vectors": 1}[name]
    return dict.fromkeys(range(count), torch.export.Dim.DYNAMIC)


@contextmanager
def quiet(library: str) -> Iterator[None]:
    """Silence a library's output, logs and warnings, and restore all logging afterwards."""
    root, silence = logging.getLogger(), logging.NullHandler()
    kind, logger = logging.getLoggerClass(), logging.getLogger(library)
    level, levels = logger.level, [(handler, handler.level) for handler in root.handlers]
    root.addHandler(silence)  # keeps the library from configuring a root logger without handlers
    root.addFilter(
        _nothing
    )  # drops records logged to the root logger itself; other loggers' records do not pass this filter
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(_nothing)
        root.removeHandler(silence)
        logging.setLoggerClass(kind)
        logger.setLevel(level)
        for handler, its_level in levels:
            handler.setLevel(its_level)


def _nothing(record: logging.LogRecord) -> bool:
    return False
