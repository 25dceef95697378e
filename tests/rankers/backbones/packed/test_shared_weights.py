"""A packed encoder uses the padded one's weights, which stays unchanged."""

from pathlib import Path

import torch

from farrank_rankers.encoder import Encoder
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import EncoderInput, collate
from support.packed_backbones import Case, MakeBackbone, packed_states, padded_states

QUERY = "neural search engine"
DOCUMENTS = ("a search engine ranks passages of the long document", "hello world", "")


def test_padded_batches_give_the_same_after_packing(encoder: Encoder, inputs: list[EncoderInput]) -> None:
    before = padded_states(encoder, inputs)
    for _ in range(2):
        with torch.inference_mode():
            packed = PackedEncoder(encoder, plain_attention)
        for mine, theirs in zip(padded_states(encoder, inputs), before, strict=True):
            assert torch.equal(mine, theirs)
    # A change of the weights affects both.
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.1)
    after = padded_states(encoder, inputs)
    assert not torch.allclose(after[0], before[0], atol=1e-2)
    for mine, theirs in zip(packed_states(packed, inputs), after, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_nothing_is_kept_twice(encoder: Encoder) -> None:
    """The weights take as many bytes as before, and no two names share one."""
    PackedEncoder(encoder, plain_attention)
    parameters = list(encoder.parameters())
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in parameters}
    assert sum(storages.values()) == sum(each.nbytes for each in parameters)


def test_weights_can_be_trained_after_packing(encoder: Encoder, inputs: list[EncoderInput]) -> None:
    with torch.inference_mode():
        PackedEncoder(encoder, plain_attention)
    batch = map(torch.from_numpy, collate(inputs[:1], encoder.facts.pad_token_id or 0))
    encoder(*batch).vectors.square().sum().backward()
    layers = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    assert all(layer.weight.grad is not None and bool(layer.weight.grad.any()) for layer in layers)


def test_an_artifact_is_written_whole_after_packing(
    case: Case, make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    ranker = new_ranker("longp", make_backbone(case.made_as, **case.changes), seed=1, pretrained=False).eval()
    weights = {name: tensor.clone() for name, tensor in ranker.state_dict().items()}
    scores = [item.score for item in ranker.score(QUERY, DOCUMENTS)]
    PackedEncoder(ranker.encoder, plain_attention)
    save_ranker(ranker, tmp_path)
    again = open_ranker(tmp_path)
    assert [item.score for item in again.score(QUERY, DOCUMENTS)] == scores
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.state_dict().items())
    stored = sum(tensor.nbytes for tensor in weights.values())
    assert (tmp_path / "model.safetensors").stat().st_size < 1.1 * stored + 20_000
