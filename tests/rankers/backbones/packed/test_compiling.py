"""The code after attention may be compiled once for all layers and lengths."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from farrank_rankers.packed.packed_backbone import PositionWise, compiled
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import CASES, LENGTHS, MakeEncoder, inputs_of, packed_states

LAYERS = 4  # twice as many as usual
# One backbone for each way to write a layer.
WRITTEN = ("bert", "deberta-v2", "distilbert", "jina", "llama", "llama with biases", "longformer")


@pytest.mark.parametrize("name", WRITTEN)
def test_graphs_give_the_same_and_serve_all_layers(name: str, make_encoder: MakeEncoder) -> None:
    torch.compiler.reset()
    case = CASES[name]
    counter = CompileCounterWithBackend("aot_eager")
    functions = 0

    def compile_by(function: PositionWise) -> PositionWise:
        nonlocal functions
        functions += 1
        whole: PositionWise = torch.compile(function, backend=counter, dynamic=True, fullgraph=True)
        return whole

    by_layer = {name: value * 2 for name, value in case.changes.items() if isinstance(value, list)}
    encoder = make_encoder(case, num_hidden_layers=LAYERS, **by_layer)
    plain = PackedEncoder(encoder, plain_attention)
    packed = PackedEncoder(encoder, plain_attention, compile_by)
    for lengths in ((17, 130, 2), (5,), (40, 41, 300), (1,)):
        inputs = inputs_of(encoder, lengths)
        for found, expected in zip(packed_states(packed, inputs), packed_states(plain, inputs), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # One graph for any number of tokens, and one for a single token, which torch always compiles separately.
    # The first may be compiled twice. A graph for each layer would be four times as many.
    assert 2 <= counter.frame_count * LAYERS / functions <= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # inductor, when imported
def test_compiled_code_gives_the_same(make_encoder: MakeEncoder) -> None:
    torch.compiler.reset()
    encoder = make_encoder(CASES["bert"])
    inputs = inputs_of(encoder, LENGTHS)
    plain = PackedEncoder(encoder, plain_attention)
    packed = PackedEncoder(encoder, plain_attention, compiled)
    for found, expected in zip(packed_states(packed, inputs), packed_states(plain, inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_compiled_by_default(make_encoder: MakeEncoder) -> None:
    counters.clear()
    encoder = make_encoder(CASES["bert"])
    packed_states(PackedEncoder(encoder, plain_attention), inputs_of(encoder, (9,)))
    assert not counters["stats"]
