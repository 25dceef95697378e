"""Packed backbones, and the parts of their layers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from farrank_rankers.packed.pattern import EVERY_TOKEN, Attention, Heads, Pattern
from farrank_rankers.packed.stream import TokenStream

# A function of tensors (T, …) that treats each token separately, and a function that compiles it. Attention
# is not compiled with it: its kernels are fast already, and read lengths that no graph should contain.
PositionWise = Callable[..., Any]
Compile = Callable[[PositionWise], PositionWise]


class PackedArguments(NamedTuple):
    """The arguments of a packed backbone: a stream, its tokens' positions, and a kernel for attention.

    With `hidden_states` the output also has the states of the embeddings and of every layer; with
    `first_tokens` the last layer may compute only each input's first token.
    Shapes: positions (T,), as the backbone numbers them.
    """

    stream: TokenStream
    positions: Tensor
    attention: Attention
    hidden_states: bool = False
    first_tokens: bool = False

    def attend(self, heads: Sequence[Tensor], pattern: Pattern, scale: float | None = None) -> Tensor:
        """Let tokens attend to those of their input, with queries, keys and values.

        Shapes: (T, A, D), (T, B, D), (T, B, D) -> (T, A, D).
        """
        query, key, value = heads
        bounds = self.stream.bounds
        return self.attention(Heads(query, key, value, bounds, bounds, scale), pattern)


class PackedOutput(NamedTuple):
    """The outputs that `Encoder.read` reads, and the stream whose tokens have these vectors.

    `tokens` is the input stream, or that of its first tokens.
    Shapes: last_hidden_state (T, H); hidden_states, if requested, (T, H) each, of embeddings and layers;
    logits (P, labels), of classifiers only.
    """

    tokens: TokenStream
    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    logits: Tensor | None = None


# A backbone that reads a stream, with the weights of the one that reads padded batches. It is for inference:
# attention has no dropout, even if its modules are in training mode.
PackedBackbone = Callable[[PackedArguments], PackedOutput]


def as_written(function: PositionWise) -> PositionWise:
    """Return a function uncompiled."""
    return function


def compiled(function: PositionWise) -> PositionWise:
    """Let torch compile a function at its first call, for any number of tokens, once for all layers."""
    return torch.compile(function, dynamic=True, fullgraph=True)


class FusedLinear:
    """Several linear layers over the same input as one matrix product.

    The layers' weights become views of one matrix, so that nothing is stored twice; only some may have a
    bias. Move or convert the layers before, never afterwards: that would separate them from the matrix.
    Shapes: (T, H) -> (T, the layers' outputs together).
    """

    # Tensors made in inference mode could never be trained.
    @torch.inference_mode(mode=False)
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = torch.cat([layer.weight.detach() for layer in layers])  # (O, H)
        self.bias: Tensor | None = None
        if any(layer.bias is not None for layer in layers):
            zeros = self.weight.new_zeros
            biases = [zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
            self.bias = torch.cat([bias.detach() for bias in biases])  # (O,)
        start = 0
        for layer in layers:
            rows = slice(start, start + layer.out_features)
            layer.weight.data = self.weight[rows]
            if layer.bias is not None and self.bias is not None:
                layer.bias.data = self.bias[rows]
            start = rows.stop

    def __call__(self, hidden: Tensor, rows: slice = slice(None)) -> Tensor:
        """Multiply by the matrix, or by some of its rows. Shapes: (T, H) -> (T, number of rows)."""
        bias = None if self.bias is None else self.bias[rows]
        return nn.functional.linear(hidden, self.weight[rows], bias)


def are_plain(layers: Iterable[Any]) -> bool:
    """Whether layers are plain linear layers: neither quantised, nor parametrised, nor adapted."""
    return all(type(layer) is nn.Linear and type(layer.weight) is nn.Parameter for layer in layers)


class LayerParts(NamedTuple):
    """The parts of a layer: projections of queries, keys and values, and the computation after attention.

    A single projection makes all three. `rest` takes attention's output and the layer's input, (T, H) each.
    """

    projections: Sequence[nn.Linear]
    heads: int
    rest: PositionWise


class PackedLayer:
    """A layer that attends, then treats each token separately. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, parts: LayerParts, compile_by: Compile) -> None:
        self.layer = layer
        self.projected = FusedLinear(parts.projections)
        self.heads = int(parts.heads)
        self.rest = compile_by(parts.rest)

    def __call__(self, hidden: Tensor, given: PackedArguments, shared: Any) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        return self.rest(self.mixed(hidden, given, shared).flatten(1), hidden)

    def mixed(self, hidden: Tensor, given: PackedArguments, shared: Any) -> Tensor:
        """Attend with the pattern that all layers share. Shapes: (T, H) -> (T, A, D)."""
        return given.attend(self.projected(hidden).view(len(hidden), 3, self.heads, -1).unbind(1), shared)

    def first(self, hidden: Tensor, given: PackedArguments, shared: Any) -> PackedOutput:
        """Compute the first token of each input, which reads all others. Shapes: (T, H) -> (P, H)."""
        tokens, first = given.stream.firsts(), given.stream.first(hidden)  # (P, H)
        width = hidden.shape[1]
        query = self.projected(first, slice(width)).view(len(first), self.heads, -1)  # (P, A, D)
        both = self.projected(hidden, slice(width, None)).view(len(hidden), 2, self.heads, -1)
        key, value = both.unbind(1)  # (T, A, D) each
        mixed = given.attention(Heads(query, key, value, tokens.bounds, given.stream.bounds), EVERY_TOKEN)
        return PackedOutput(tokens, self.rest(mixed.flatten(1), first))


class PackedTransformer:
    """A packed backbone on a transformers model's weights, which must be on their device already.

    Base of the architectures' packed backbones; embeddings are BERT's by default. `compile_by` compiles the
    layers' computations per token.
    """

    layer_class = PackedLayer
    layers_at = "encoder.layer"  # in the model

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self.model = model
        self.layers = [
            self.layer_class(layer, self.parts(layer), compile_by)
            for layer in model.get_submodule(self.layers_at)
        ]

    @classmethod
    def serves(cls, model: Any) -> bool:
        """Whether a model of the architecture computes the same as the packed form: a variant may not."""
        return all(are_plain(cls.parts(layer).projections) for layer in model.get_submodule(cls.layers_at))

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a layer into its parts."""
        raise NotImplementedError

    def embedded(self, given: PackedArguments) -> Tensor:
        """Compute the first layer's input from embeddings like BERT's. Shapes: T tokens -> (T, H)."""
        stream = given.stream
        return self.model.embeddings(
            input_ids=stream.input_ids[None],
            token_type_ids=stream.token_type_ids[None],
            position_ids=given.positions[None],
        )[0]

    def shared(self, given: PackedArguments, hidden: Tensor) -> Any:
        """Make the argument shared by all layers' attention: a pattern, for plain layers."""
        return EVERY_TOKEN

    def ends_in_firsts(self, shared: Any) -> bool:
        """Whether the last layer can compute only first tokens, which it can if they see all others."""
        return shared is EVERY_TOKEN

    def __call__(self, given: PackedArguments) -> PackedOutput:
        """Shapes: T tokens -> last_hidden_state (T, H), or (P, H) of first tokens."""
        hidden = self.embedded(given)  # (T, H)
        shared = self.shared(given, hidden)
        # The last layer computes first tokens only if nothing reads the others.
        firsts = given.first_tokens and not given.hidden_states and self.ends_in_firsts(shared)
        states = [hidden]
        for layer in self.layers[:-1] if firsts else self.layers:
            hidden = layer(hidden, given, shared)  # (T, H)
            if given.hidden_states:
                states.append(hidden)
        if firsts:
            return self.layers[-1].first(hidden, given, shared)
        return PackedOutput(given.stream, hidden, tuple(states) if given.hidden_states else None)
