"""The matrix products of an ONNX graph that int8 leaves as they are."""

from typing import NamedTuple

import onnx

ACTIVATIONS = frozenset(
    {"Celu", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Softplus"}
    | {"Swish", "Tanh"}
)

# Operators between an activation and the product: the activation's own arithmetic, gates, casts.
_ELEMENTWISE = frozenset(
    {"Add", "Cast", "CastLike", "Div", "Dropout", "Identity", "Mul", "Neg", "Pow", "Reshape", "Sub"}
)
_PRODUCTS = frozenset({"Gemm", "MatMul"})
# Operators that turn a constant into a constant.
_OF_WEIGHTS = frozenset({"Cast", "Identity", "Transpose"})


class NodesApart(NamedTuple):
    """The names of a graph's nodes that int8 may leave as they are.

    `after_activations` are products of weights and an activation's output, the second of each feed-forward
    block. The output has outliers in a few of its thousands of dimensions; rounded at the same scale, the
    other dimensions would lose their precision. `without_weights` are attention's products, in which neither
    factor is a weight.
    """

    after_activations: list[str]
    without_weights: list[str]


def nodes_apart(graph: onnx.GraphProto) -> NodesApart:
    """Find them in one pass over the nodes, which ONNX keeps in topological order."""
    found = NodesApart([], [])
    weights = {tensor.name for tensor in graph.initializer}  # and constants made of them
    activated: set[str] = set()  # an activation's output, and elementwise results of it
    for node in graph.node:
        if node.op_type in _OF_WEIGHTS and node.input[0] in weights:
            weights.update(node.output)
        elif node.op_type in ACTIVATIONS or (node.op_type in _ELEMENTWISE and activated & {*node.input}):
            activated.update(node.output)
        elif node.op_type in _PRODUCTS and node.input[1] not in weights:
            found.without_weights.append(node.name)
        elif node.op_type in _PRODUCTS and node.input[0] in activated:
            found.after_activations.append(node.name)
    return found
