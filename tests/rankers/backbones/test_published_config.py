"""Positions follow config.json, whichever release of transformers wrote it."""

import copy
from typing import Any

import pytest
import transformers

from farrank_rankers.backbones import build_backbone
from farrank_rankers.backbones.published_config import SINCE_5, as_installed
from farrank_rankers.errors import SourceError

# The same models in the formats of 4.57 and 5: the positions in config.json.
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.0}
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {"rope_theta": 5e4, "rope_scaling": LINEAR},
        {"rope_parameters": {**LINEAR, "rope_theta": 5e4}},
    ),
    "qwen3": (
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    ),
    "phi3": (
        {"rope_theta": 2e4, "rope_scaling": None, "partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 2e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    "modernbert": (
        {"global_rope_theta": 8e4, "local_rope_theta": 5e3, "global_attn_every_n_layers": 2},
        {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 8e4, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 5e3, "rope_type": "default"},
            },
        },
    ),
    "gemma3_text": (
        {"rope_theta": 2e6, "rope_local_base_freq": 5e3, "rope_scaling": LINEAR},
        {
            "rope_parameters": {
                "full_attention": {**LINEAR, "rope_theta": 2e6},
                "sliding_attention": {"rope_theta": 5e3, "rope_type": "default"},
            }
        },
    ),
}


@pytest.mark.parametrize("model_type", WRITTEN)
def test_files_of_5_are_read_in_4_57_like_its_own(model_type: str) -> None:
    before, since = ({"model_type": model_type} | each for each in WRITTEN[model_type])
    read = as_installed(copy.deepcopy(since), since_5=False)
    assert {name: read.get(name) for name in before} == before
    assert "rope_parameters" not in read
    assert as_installed(before, since_5=False) == before
    assert as_installed(since, since_5=True) == since


@pytest.mark.parametrize("model_type", WRITTEN)
def test_both_build_the_same_configuration(model_type: str) -> None:
    """The installed release reads both."""
    before, since = (
        build_backbone.transformers_config({"model_type": model_type, "num_hidden_layers": 3} | each)
        for each in WRITTEN[model_type]
    )
    keys = ("rope_parameters",) if SINCE_5 else tuple(WRITTEN[model_type][0])
    assert [getattr(since, key) for key in keys] == [getattr(before, key) for key in keys]
    assert getattr(before, keys[0]) != getattr(transformers.AutoConfig.for_model(model_type), keys[0])


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("modernbert", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("modernbert", {"rope_parameters": {"sliding_attention": {**LINEAR, "rope_theta": 1e4}}}),
        ("another", {"rope_parameters": {"full_attention": {"rope_theta": 1e4, "rope_type": "default"}}}),
    ],
)
def test_configurations_beyond_4_57_need_5(model_type: str, values: dict[str, Any]) -> None:
    config = {"model_type": model_type, "rope_parameters": {"rope_theta": 1e4}} | values
    with pytest.raises(SourceError, match="needs transformers 5"):
        as_installed(config, since_5=False)
    assert as_installed(config, since_5=True) == config


def test_all_layers_may_be_global() -> None:
    config = {"model_type": "modernbert", "layer_types": ["full_attention"] * 4}
    assert as_installed(config, since_5=False) == config | {"global_attn_every_n_layers": 1}


def test_relative_positions_of_bert_need_4_57() -> None:
    config = {"model_type": "bert", "position_embedding_type": "relative_key"}
    with pytest.raises(SourceError, match=r"position_embedding_type is 'relative_key'.*up to 4\.57"):
        as_installed(config, since_5=True)
    assert as_installed(config, since_5=False) == config


CHOSEN = "attacker/kernels"


@pytest.mark.parametrize(
    "values",
    [
        {"_attn_implementation_internal": CHOSEN},
        {"_attn_implementation": CHOSEN},
        {"attn_implementation": CHOSEN},
        {"_experts_implementation_internal": CHOSEN},
        {"auto_map": {"AutoModel": "modeling_other.Other"}},
        {"trust_remote_code": True},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_config_chooses_no_code(values: dict[str, Any]) -> None:
    """CVE-2026-4372 and CVE-2026-5241, in releases before 5.3."""
    config = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    built = build_backbone.transformers_config(config | values | {"text_config": {"inner": 1} | values})
    (name,) = values
    assert getattr(built, name, None) in (None, "eager", "sdpa")
    assert built.text_config == {"inner": 1}
    assert transformers.AutoModel.from_config(built).config._attn_implementation in ("eager", "sdpa")
