"""A family's encoder on streams: the same weights, the same features, no padding."""

from farrank_rankers.backbones.forms import packed_backbone
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SourceError
from farrank_rankers.features import Features
from farrank_rankers.packed.packed_backbone import Compile, PackedArguments, as_written
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.stream import TokenStream


class PackedEncoder:
    """Encodes streams with an encoder's weights, which it shares: both can be used in turn.

    The encoder must already be on its device and in its precision, and stay so. With `compile_by` `compiled`,
    torch compiles the layers' computations between attentions at the first streams.
    Raises: SourceError if the backbone has no packed form; see `packed_backbone`.
    """

    def __init__(self, encoder: Encoder, attention: Attention, compile_by: Compile = as_written) -> None:
        architecture = encoder.facts.architecture
        backbone = packed_backbone(encoder.backbone, architecture, compile_by)
        if backbone is None:
            raise SourceError(f"this backbone of type {architecture!r} reads only padded batches")
        self._encoder = encoder
        self._backbone = backbone
        self._attention = attention

    def __call__(self, stream: TokenStream) -> list[Features]:
        """Encode inputs. Shapes: T tokens of P inputs -> P times (F,), or (S, F…) with roles (S,)."""
        return stream.rows(self.encode(stream))

    def encode(self, stream: TokenStream) -> Features:
        """Encode inputs, and return the family's features undivided.

        Nothing here waits for the device; splitting into rows may.
        Shapes: T tokens of P inputs -> (P, F), or with roles (T, F…) or (P, S, F…).
        """
        encoder = self._encoder
        lengths = stream.bounds.offsets.diff().index_select(0, stream.inputs)  # (T,)
        given = PackedArguments(
            stream,
            encoder.stepped(stream.places, lengths) + encoder.facts.first_position,
            self._attention,
            hidden_states=encoder.keeps_hidden_states,
            first_tokens=encoder.reads_first_tokens_alone,
        )
        output = self._backbone(given)
        return encoder.read(output, output.tokens)
