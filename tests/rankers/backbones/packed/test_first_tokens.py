"""If only first tokens are read, a packed last layer may omit all others, with the same result."""

import torch
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.features import Features, Layout
from farrank_rankers.packed.pattern import EVERY_TOKEN, Heads, Pattern
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import EncoderInput
from support.packed_backbones import stream_of


class Watched:
    """Plain attention that records the number of querying tokens, and the pattern."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Pattern]] = []

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        self.calls.append((len(heads.query), pattern))
        return plain_attention(heads, pattern)


def first_vectors(encoder: Encoder, inputs: list[EncoderInput], attention: Watched, alone: bool) -> Tensor:
    """Return each input's first vector of the last layer. Shapes: -> (P, H)."""

    def read(output: object, tokens: Layout) -> Features:
        return Features(tokens.first(getattr(output, "last_hidden_state")))  # noqa: B009  # of any output

    encoder.keeps_hidden_states, encoder.reads_first_tokens_alone = False, alone
    encoder.read = read  # type: ignore[method-assign]
    with torch.inference_mode():
        return PackedEncoder(encoder, attention).encode(stream_of(inputs)).vectors


def test_first_tokens_are_what_they_were(encoder: Encoder, inputs: list[EncoderInput]) -> None:
    whole, less = Watched(), Watched()
    expected = first_vectors(encoder, inputs, whole, alone=False)
    found = first_vectors(encoder, inputs, less, alone=True)
    assert found.shape == (len(inputs), encoder.backbone.config.hidden_size)  # type: ignore[union-attr]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # Layers with their own patterns are computed completely, and Llama's first token sees no other token. For
    # ModernBERT, only whether the last layer is global decides.
    of_layers = whole.calls[-1:] if encoder.facts.architecture == "modernbert" else whole.calls
    is_less = all(pattern is EVERY_TOKEN for _, pattern in of_layers) and (
        encoder.facts.architecture != "deberta-v2"
    )
    assert less.calls[-1][0] == (len(inputs) if is_less else whole.calls[-1][0])
    for (count, pattern), (expected_count, of_whole) in zip(less.calls[:-1], whole.calls, strict=False):
        # The patterns are the same object, except a window's, which each encoder makes for itself.
        same = pattern is of_whole or pattern.window == of_whole.window is not None
        assert (count == expected_count and same) or not is_less
