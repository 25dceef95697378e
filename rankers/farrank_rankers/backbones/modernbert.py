"""ModernBERT: pre-norm layers with rotary positions; two of three layers see only near tokens.

Every third layer attends to the whole input, with another base of its rotations. The last layer's vectors are
normed once more.

Source: Warner et al., "Smarter, Better, Faster, Longer", arXiv 2412.13663.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.backbones.llama import BY_THE_BATCH, turned
from farrank_rankers.backbones.published_config import LOCAL
from farrank_rankers.packed.packed_backbone import (
    Compile,
    LayerParts,
    PackedArguments,
    PackedLayer,
    PackedOutput,
    PackedTransformer,
)
from farrank_rankers.packed.pattern import EVERY_TOKEN, Heads, Pattern, counting_places
from farrank_rankers.packed.stream import TokenStream
from farrank_rankers.spec import RankerSpec


def prepare(spec: RankerSpec, config: Any) -> None:
    """Make transformers compute in the given precision, and compile nothing.

    With flash_attn installed, transformers 4 would use it for fp32, too, and round to bf16. With Triton
    installed, it would compile layers at the first batch on a GPU.
    """
    config._attn_implementation = "sdpa"
    config.reference_compile = False


def is_local(layer: Any) -> bool:
    """Whether a layer's tokens see only near ones."""
    kind = getattr(layer, "attention_type", None)  # of transformers 5
    return bool(layer.attn.local_attention != (-1, -1) if kind is None else kind == LOCAL)


class Rotations(NamedTuple):
    """Cosines and sines of positions, for layers of one kind. Shapes: (T, D) each, or (P or 1, L, D)."""

    cosine: Tensor
    sine: Tensor

    @classmethod
    def of(cls, model: Any, layer: Any, hidden: Tensor, positions: Tensor) -> "Rotations":
        """Read them from the model. Shapes: hidden (P, L, H), positions (P or 1, L) -> (P or 1, L, D)."""
        if hasattr(model, "rotary_emb"):  # transformers 5
            return cls(*model.rotary_emb(hidden, positions, layer.attention_type))
        return cls(*layer.attn.rotary_emb(hidden, position_ids=positions))


def with_normed_states(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call ModernBERT; the last hidden state is normed, as in transformers 5 but not in 4."""
    output = backbone(**inputs)
    if output.hidden_states is not None and "last_hidden_state" in output:
        output.hidden_states = (*output.hidden_states[:-1], output.last_hidden_state)
    return output


class SharedInputs(NamedTuple):
    """Shared by layers of one kind: the pattern of tokens that see each other, and the rotations of heads.

    Shapes: cosine and sine (T, 1, D).
    """

    pattern: Pattern
    cosine: Tensor
    sine: Tensor


class PackedModernBertLayer(PackedLayer):
    """A pre-norm layer. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, parts: LayerParts, compile_by: Compile) -> None:
        super().__init__(layer, parts, compile_by)
        self.is_local = is_local(layer)
        self._asked = compile_by(self.asked)

    def mixed(self, hidden: Tensor, given: PackedArguments, shared: Any) -> Tensor:
        """Shapes: hidden (T, H) -> (T, A, D)."""
        own: SharedInputs = shared[self.is_local]
        return given.attend(self._asked(hidden, own.cosine, own.sine), own.pattern)

    def asked(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values. Shapes: (T, H), (T, 1, D) twice -> (T, A, D) each."""
        projected = self.projected(self.layer.attn_norm(hidden))  # (T, 3H)
        query, key, value = projected.view(len(hidden), 3, self.heads, -1).unbind(1)  # (T, A, D) each
        return turned(query, cosine, sine), turned(key, cosine, sine), value

    def first(self, hidden: Tensor, given: PackedArguments, shared: Any) -> PackedOutput:
        """Compute the first token of each input, which reads all others. Shapes: (T, H) -> (P, H)."""
        own: SharedInputs = shared[self.is_local]
        stream = given.stream
        tokens, first, width = stream.firsts(), stream.first(hidden), hidden.shape[1]
        normed = self.layer.attn_norm(hidden)  # (T, H)
        query = self.projected(stream.first(normed), slice(width)).view(len(first), self.heads, -1)
        query = turned(query, stream.first(own.cosine), stream.first(own.sine))  # (P, A, D)
        both = self.projected(normed, slice(width, None)).view(len(hidden), 2, self.heads, -1)
        key, value = both.unbind(1)  # (T, A, D) each
        heads = Heads(query, turned(key, own.cosine, own.sine), value, tokens.bounds, stream.bounds)
        return PackedOutput(tokens, self.rest(given.attention(heads, EVERY_TOKEN).flatten(1), first))


class PackedModernBert(PackedTransformer):
    """A transformers ModernBERT. Shapes: T tokens -> last_hidden_state (T, H), or (P, H) of first tokens."""

    layer_class = PackedModernBertLayer
    layers_at = "layers"

    def __init__(self, model: Any, compile_by: Compile) -> None:
        super().__init__(model, compile_by)
        self._near = Pattern(window=window_of(model))

    @classmethod
    def serves(cls, model: Any) -> bool:
        """Whether positions depend only on the input, and all projections can be fused."""
        turning = [model.rotary_emb] if hasattr(model, "rotary_emb") else []
        turning = turning or [layer.attn.rotary_emb for layer in model.layers]
        kinds = [each.rope_type for each in turning]
        named = {name for kind in kinds for name in (kind.values() if isinstance(kind, dict) else (kind,))}
        return super().serves(model) and not named & BY_THE_BATCH

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a pre-norm layer into its parts."""

        def rest(mixed: Tensor, hidden: Tensor) -> Tensor:
            hidden = hidden + layer.attn.Wo(mixed)  # (T, H)
            return hidden + layer.mlp(layer.mlp_norm(hidden))

        return LayerParts([layer.attn.Wqkv], layer.attn.config.num_attention_heads, rest)

    def embedded(self, given: PackedArguments) -> Tensor:
        """Shapes: T tokens -> (T, H)."""
        return self.model.embeddings(given.stream.input_ids)

    def shared(self, given: PackedArguments, hidden: Tensor) -> Mapping[bool, SharedInputs]:
        """Give the shared parts of layers, by whether the layers are local."""
        shared = {}
        for layer in self.model.layers:
            near = is_local(layer)
            if near not in shared:
                cosine, sine = Rotations.of(self.model, layer, hidden[None], given.positions[None])
                pattern = self._near_in(given.stream) if near else EVERY_TOKEN
                shared[near] = SharedInputs(pattern, cosine[0, :, None], sine[0, :, None])
        return shared

    def _near_in(self, stream: TokenStream) -> Pattern:
        """Let tokens see near ones; padding that the stream leaves out counts."""
        return self._near if stream.is_dense else counting_places(self._near, stream.places)

    def ends_in_firsts(self, shared: Any) -> bool:
        """Whether the last layer can compute only first tokens, which it can if it is global."""
        return not is_local(self.model.layers[-1])

    def __call__(self, given: PackedArguments) -> PackedOutput:
        """Shapes: T tokens -> last_hidden_state (T, H), or (P, H) of first tokens."""
        output = super().__call__(given)
        last: Tensor = self.model.final_norm(output.last_hidden_state)
        return output._replace(
            last_hidden_state=last,
            hidden_states=output.hidden_states and (*output.hidden_states[:-1], last),
        )


def window_of(model: Any) -> int:
    """The distance, in tokens, that a local layer's token sees on each side."""
    return int(model.config.local_attention) // 2


def pooled_by_config(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Pass first tokens or means to the head, as config.json says. Shapes: (T, H) -> (P, labels)."""
    if model.config.classifier_pooling == "mean":
        # A sum of many tokens in bf16 would lose small differences between them.
        pooled = tokens.mean(hidden.float()).to(hidden.dtype)  # (P, H)
    else:
        pooled = tokens.first(hidden)  # (P, H)
    return model.classifier(model.head(pooled))


# Two of three layers compute only the scores of near tokens; transformers computes all and masks them. On a
# CPU, streams took 0.8 of the time with inputs of 128 tokens, and a third with 8,192.
MODERNBERT = Forms(
    prepare=prepare,
    call=with_normed_states,
    packed=PackedModernBert,
    head=pooled_by_config,
    packs_unfused=True,
)
