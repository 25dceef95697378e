"""What a packed backbone is, and the parts that its layers are made of."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from farrank_rankers.packed.pattern import EVERY_TOKEN, Attention, Heads, Pattern
from farrank_rankers.packed.stream import InputBounds, TokenStream

# A function of tensors (T, …) that treats each token by itself, and what turns one into another that does the
# same. Attention stays outside: its kernels are fast as they are, and read lengths that no graph should hold.
PositionWise = Callable[..., Any]
Compile = Callable[[PositionWise], PositionWise]


class Reading(NamedTuple):
    """What a packed backbone is given: a stream, its tokens' positions, and a kernel for attention.

    With `hidden_states` the states of the embeddings and of every layer are wanted as well; with
    `first_tokens` the last layer may compute each input's first token only.
    Shapes: positions (T,), as the backbone numbers them.
    """

    stream: TokenStream
    positions: Tensor
    attention: Attention
    hidden_states: bool = False
    first_tokens: bool = False


class PackedOutput(NamedTuple):
    """What `Encoder.read` reads of transformers' outputs, and the stream whose tokens have these vectors.

    `tokens` is the stream that was given, or that of its first tokens.
    Shapes: last_hidden_state (T, H); hidden_states, if wanted, likewise, of embeddings and layers; logits
    (P, labels), of classifiers only.
    """

    tokens: TokenStream
    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    logits: Tensor | None = None


# A backbone that reads a stream, on the weights of the one that reads padded batches. It is for inference:
# whatever mode its modules are in, no attention weight is dropped.
PackedBackbone = Callable[[Reading], PackedOutput]


class PackedForm(Protocol):
    """How an architecture is packed: a class of packed backbones."""

    def __call__(self, model: Any, compile_by: Compile) -> PackedBackbone:
        """Put a packed backbone on a model's weights, which must be on their device already.

        `compile_by` is given what the layers do token by token.
        """
        ...

    def serves(self, model: Any) -> bool:
        """Whether a model of the architecture computes what the packed form does: a variant may not."""
        ...


def as_written(function: PositionWise) -> PositionWise:
    """Leave a function to be run line by line."""
    return function


def compiled(function: PositionWise) -> PositionWise:
    """Have torch compile a function at its first call, for any number of tokens, once for all layers."""
    whole: PositionWise = torch.compile(function, dynamic=True, fullgraph=True)
    return whole


class FusedLinear:
    """Several linear layers over the same input as one matrix product.

    The layers' weights become views of one matrix, so that nothing is stored twice; some may have a bias and
    others none. Move or convert the layers before, never afterwards: that would part them from the matrix.
    Shapes: (T, H) -> (T, the layers' outputs together).
    """

    # Tensors made in inference mode could never be trained again.
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

    def __call__(self, hidden: Tensor) -> Tensor:
        """Shapes: (T, H) -> (T, O)."""
        return nn.functional.linear(hidden, self.weight, self.bias)

    def part(self, hidden: Tensor, rows: slice) -> Tensor:
        """Apply some rows of the matrix. Shapes: (T, H) -> (T, number of rows)."""
        bias = None if self.bias is None else self.bias[rows]
        return nn.functional.linear(hidden, self.weight[rows], bias)


def are_plain(layers: Iterable[Any]) -> bool:
    """Whether layers are linear and nothing more: neither quantised, nor parametrised, nor adapted."""
    return all(type(layer) is nn.Linear and type(layer.weight) is nn.Parameter for layer in layers)


class PackedLayer:
    """A layer that attends, then treats each token by itself. Shapes: (T, H) -> (T, H).

    `projections` make queries, keys and values; a single one makes all three. `rest` is given what attention
    mixed and what the layer read, (T, H) each.
    """

    def __init__(
        self, projections: Sequence[nn.Linear], heads: int, rest: PositionWise, compile_by: Compile
    ) -> None:
        self._projected = FusedLinear(projections)
        self._heads = heads
        self._rest = compile_by(rest)

    def __call__(self, hidden: Tensor, bounds: InputBounds, attention: Attention, pattern: Pattern) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 3, self._heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(Heads(query, key, value, bounds, bounds), pattern)  # (T, A, D)
        output: Tensor = self._rest(mixed.flatten(1), hidden)
        return output

    def first(self, hidden: Tensor, stream: TokenStream, firsts: TokenStream, attention: Attention) -> Tensor:
        """Compute the first token of each input, which reads all others. Shapes: (T, H) -> (P, H)."""
        first, width = stream.first(hidden), hidden.shape[1]  # (P, H)
        query = self._projected.part(first, slice(width)).view(len(first), self._heads, -1)  # (P, A, D)
        both = self._projected.part(hidden, slice(width, None)).view(len(hidden), 2, self._heads, -1)
        key, value = both.unbind(1)  # (T, A, D) each
        mixed = attention(Heads(query, key, value, firsts.bounds, stream.bounds), EVERY_TOKEN)  # (P, A, D)
        output: Tensor = self._rest(mixed.flatten(1), first)
        return output


def embedded(embeddings: Any, given: Reading) -> Tensor:
    """Call embeddings as transformers' BERT has them. Shapes: T tokens -> (T, E)."""
    stream = given.stream
    hidden: Tensor = embeddings(
        input_ids=stream.input_ids[None],
        token_type_ids=stream.token_type_ids[None],
        position_ids=given.positions[None],
    )
    return hidden[0]


def run_layers(layers: Iterable[Callable[[Tensor], Tensor]], given: Reading, hidden: Tensor) -> PackedOutput:
    """Apply one layer after the other, and keep all states if they are wanted. Shapes: (T, H) -> (T, H)."""
    states = [hidden]
    for layer in layers:
        hidden = layer(hidden)  # (T, H)
        if given.hidden_states:
            states.append(hidden)
    return PackedOutput(given.stream, hidden, tuple(states) if given.hidden_states else None)


def run_packed_layers(
    layers: Sequence[PackedLayer], given: Reading, hidden: Tensor, pattern: Pattern
) -> PackedOutput:
    """Apply layers of one pattern, the last one for first tokens only if nothing reads the others.

    Shapes: (T, H) -> (T, H) or (P, H).
    """
    stream, attention = given.stream, given.attention
    steps = [partial(layer, bounds=stream.bounds, attention=attention, pattern=pattern) for layer in layers]
    if not given.first_tokens or given.hidden_states or pattern is not EVERY_TOKEN:
        return run_layers(steps, given, hidden)
    before = run_layers(steps[:-1], given, hidden).last_hidden_state  # (T, H)
    firsts = stream.firsts()
    return PackedOutput(firsts, layers[-1].first(before, stream, firsts, attention))
