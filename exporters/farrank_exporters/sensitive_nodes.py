"""Which nodes of an encoder's graph stay as they are in int8: rounding would cost more there than it gains.

They are found by what is connected to what: exporters and architectures name nodes as they like.
"""

from collections.abc import Mapping

import onnx

ACTIVATIONS = frozenset(
    {"Celu", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Softplus"}
    | {"Swish", "Tanh"}
)

# What may stand between an activation and the product: its own arithmetic, gates, casts.
_ELEMENTWISE = frozenset(
    {"Add", "Cast", "CastLike", "Div", "Dropout", "Identity", "Mul", "Neg", "Pow", "Reshape", "Sub"}
)
_PRODUCTS = frozenset({"Gemm", "MatMul"})
# What makes a constant of a constant.
_OF_WEIGHTS = frozenset({"Cast", "Identity", "Transpose"})


def products_after_activations(graph: onnx.GraphProto) -> list[str]:
    """Name the products of weights with what comes out of an activation: each feed-forward block's second.

    What an activation lets through has outliers in a few of its thousands of dimensions: rounded at one scale
    with them, all others lose their digits.
    """
    producers = {output: node for node in graph.node for output in node.output}
    weights = _weights(graph)
    return [
        node.name
        for node in graph.node
        if node.op_type in _PRODUCTS
        and node.input[1] in weights
        and _from_activation(node.input[0], producers)
    ]


def products_without_weights(graph: onnx.GraphProto) -> list[str]:
    """Name the products of two values that each input has its own of: attention's."""
    weights = _weights(graph)
    return [node.name for node in graph.node if node.op_type in _PRODUCTS and node.input[1] not in weights]


def embeddings(graph: onnx.GraphProto) -> list[str]:
    """Name the look-ups in tables of weights: they take no arithmetic that int8 could speed up."""
    weights = _weights(graph)
    return [node.name for node in graph.node if node.op_type == "Gather" and node.input[0] in weights]


def _weights(graph: onnx.GraphProto) -> set[str]:
    """Collect the values that are the same for every input."""
    weights = {tensor.name for tensor in graph.initializer}
    for node in graph.node:  # in topological order, as ONNX prescribes
        if node.op_type in _OF_WEIGHTS and node.input[0] in weights:
            weights.update(node.output)
    return weights


def _from_activation(value: str, producers: Mapping[str, onnx.NodeProto]) -> bool:
    """Look for an activation behind a value, through elementwise operations alone."""
    waiting, seen = [value], set[str]()
    while waiting:
        value = waiting.pop()
        node = producers.get(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        if node.op_type in ACTIVATIONS:
            return True
        if node.op_type in _ELEMENTWISE:
            waiting.extend(node.input)
    return False
