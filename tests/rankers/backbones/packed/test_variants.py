"""A variant that differs from its packed form is left to padded batches."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from farrank_rankers.backbones.forms import packed_backbone
from farrank_rankers.backbones.published_config import SINCE_5
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SourceError
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import CASES, Case, MakeEncoder


class Adapted(nn.Linear):
    """A linear layer that computes more, as adapters' and quantized ones do."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) + 1


def is_packed(encoder: Encoder) -> bool:
    return packed_backbone(encoder.backbone, encoder.facts.architecture) is not None


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (Case("bert"), {"is_decoder": True}),
        (Case("bert"), {"is_decoder": True, "add_cross_attention": True}),
        (Case("roberta", model_type="xlm-roberta"), {"is_decoder": True}),
        (Case("bert"), {"chunk_size_feed_forward": 8}),
        (Case("electra"), {"chunk_size_feed_forward": 8}),
        (Case("distilbert"), {"chunk_size_feed_forward": 8}),
        (Case("llama"), {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        (Case("modernbert"), {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ],
    ids=str,
)
def test_variants_are_recognized_by_their_modules(
    case: Case, changes: dict[str, Any], make_encoder: MakeEncoder
) -> None:
    assert is_packed(make_encoder(case))
    encoder = make_encoder(case, **changes)
    assert not is_packed(encoder)
    with pytest.raises(
        SourceError, match=f"^this backbone of type '{encoder.facts.architecture}' reads only padded"
    ):
        PackedEncoder(encoder, plain_attention)


@pytest.mark.parametrize("made_as", ["bert", "electra", "roberta"])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions(made_as: str, kind: str, make_encoder: MakeEncoder) -> None:
    """Transformers 5 would read positions from the embeddings' table, whatever config.json says."""
    if SINCE_5:
        with pytest.raises(SourceError, match="position_embedding_type is"):
            make_encoder(Case(made_as), position_embedding_type=kind)
    else:
        assert not is_packed(make_encoder(Case(made_as), position_embedding_type=kind))


@pytest.mark.parametrize("changed", [Adapted(32, 32), weight_norm(nn.Linear(32, 32)), nn.Identity()], ids=str)
@pytest.mark.parametrize("name", ["bert", "distilbert", "jina", "llama", "modernbert"])
def test_layers_that_are_more_than_linear(name: str, changed: nn.Module, make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(CASES[name])
    queries = ("query", "q_lin", "q_proj", "Wqkv")
    path = [name for name, _ in encoder.backbone.named_modules() if name.endswith(queries)][-1]
    parent, _, own = path.rpartition(".")
    setattr(encoder.backbone.get_submodule(parent), own, changed)
    assert not is_packed(encoder)


def test_weights_of_another_kind(make_encoder: MakeEncoder) -> None:
    """Some quantized layers differ only in their weights."""

    class Quantised(nn.Parameter):
        pass

    encoder = make_encoder(CASES["bert"])
    layers: Any = encoder.backbone.get_submodule("encoder.layer")
    key = layers[-1].attention.self.key
    key.weight = Quantised(key.weight.detach())
    assert not is_packed(encoder)


def test_other_architectures(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(CASES["bert"])
    assert packed_backbone(encoder.backbone, "albert") is None
    assert packed_backbone(encoder.backbone, "") is None
