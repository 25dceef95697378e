"""One encoder for every backbone that reads streams, and inputs of all lengths."""

import json
from typing import Any

import pytest
import torch

from farrank_rankers.encoder import Encoder
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.tokens import EncoderInput
from support.packed_backbones import CASES, LENGTHS, Case, MakeBackbone, MakeEncoder, States, inputs_of


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def make_encoder(make_backbone: MakeBackbone) -> MakeEncoder:
    """Build a case's encoder. No weight is 0 or 1, so that biases and norms have an effect."""

    def make(case: Case, **changes: Any) -> Encoder:
        folder = make_backbone(case.made_as, **case.changes | changes)
        if case.model_type is not None:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            (folder / "config.json").write_text(json.dumps(config | {"model_type": case.model_type}))
        ranker = new_ranker("longp", folder, seed=1, pretrained=False)
        bare = States(ranker.spec, ranker.backbone_config)
        bare.load_state_dict(ranker.encoder.state_dict())
        assert case.model_type is None or bare.facts.architecture == case.model_type
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in bare.backbone.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        return bare.eval()

    return make


@pytest.fixture
def encoder(case: Case, make_encoder: MakeEncoder) -> Encoder:
    return make_encoder(case)


@pytest.fixture
def inputs(encoder: Encoder) -> list[EncoderInput]:
    return inputs_of(encoder, LENGTHS)
