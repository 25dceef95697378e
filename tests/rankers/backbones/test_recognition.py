"""The backbone of each `config.json`, and the errors for configurations that need more than exists."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from farrank_rankers.backbone_facts import own_backbone
from farrank_rankers.backbones.alibi_bert import build_alibi_bert
from farrank_rankers.errors import SourceError


def test_published_configs_are_recognised(published: Any) -> None:
    assert own_backbone(published.config) == published.kind
    with torch.device("meta"):
        assert build_alibi_bert(published.config).kind == published.kind


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "bert"},
        {"model_type": "bert", "architectures": ["BertForMaskedLM"], "position_embedding_type": "absolute"},
        {"model_type": "bert", "architectures": None},
        {"model_type": "bert", "architectures": "JinaBertForMaskedLM"},
        {"model_type": "bert", "architectures": [["JinaBertForMaskedLM"]]},
        {"model_type": "mpt", "alibi_starting_size": 2048},
    ],
)
def test_others_are_left_to_transformers(config: dict[str, Any]) -> None:
    assert own_backbone(config) is None
    with pytest.raises(SourceError, match="neither JinaBERT nor MosaicBERT"):
        build_alibi_bert(config)


def test_saved_again_from_the_hub() -> None:
    """The transformers library writes such an auto_map when it saves a model with code from elsewhere."""
    from_hub = "mosaicml/mosaic-bert-base-seqlen-1024--bert_layers.BertForMaskedLM"
    config = {
        "model_type": "bert",
        "alibi_starting_size": 1024,
        "auto_map": {"AutoModelForMaskedLM": from_hub},
    }
    assert own_backbone(config) == "mosaic"
    with pytest.raises(SourceError, match="hidden_act is missing"):
        build_alibi_bert(config)


def test_recognition_needs_no_torch() -> None:
    code = (
        "import sys; from farrank_rankers.backbone_facts import own_backbone; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=280).returncode == 0


SIZES = ("vocab_size", "type_vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


@pytest.mark.parametrize(
    "key",
    [
        *SIZES,
        "intermediate_size",
        "layer_norm_eps",
        "initializer_range",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "hidden_act",
    ],
)
def test_missing_keys_are_named(published: Any, key: str) -> None:
    config = published.tiny()
    del config[key]
    with pytest.raises(SourceError, match=rf"^config\.json: {key} is missing"):
        build_alibi_bert(config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_act", "gelu_new", "hidden_act is 'gelu_new'; only 'gelu' is supported"),
        ("hidden_size", 25, "num_attention_heads is 12; it must divide hidden_size, which is 25"),
        ("hidden_size", "24", "hidden_size is '24'; it must be a whole number"),
        ("hidden_size", 24.0, r"hidden_size is 24\.0; it must be a whole number"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0; it must be greater than 0"),
        ("num_hidden_layers", True, "num_hidden_layers is True; it must be a whole number"),
        ("layer_norm_eps", -1.0, r"layer_norm_eps is -1\.0; it must be greater than 0"),
        ("layer_norm_eps", float("nan"), "layer_norm_eps must be a finite number"),
        ("initializer_range", None, "initializer_range is None; it must be a number"),
        ("hidden_dropout_prob", 1.0, r"hidden_dropout_prob is 1\.0; it must be at least 0 and below 1"),
        ("attention_probs_dropout_prob", -0.1, "attention_probs_dropout_prob is -0.1; it must be at least 0"),
        ("auto_map", None, "auto_map gives None for AutoModel"),
        ("auto_map", {}, "auto_map gives None for AutoModel"),
        ("auto_map", {"AutoModel": [1], "AutoModelForMaskedLM": [1]}, r"auto_map gives \[1\] for AutoModel"),
    ],
)
def test_unsupported_values_are_named(published: Any, key: str, value: Any, message: str) -> None:
    with pytest.raises(SourceError, match=rf"^config\.json: {message}"):
        build_alibi_bert(published.tiny(**{key: value}))


@pytest.mark.parametrize("published", ["jina"], indirect=True)
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("position_embedding_type", "absolute", "position_embedding_type is 'absolute'; only 'alibi'"),
        ("feed_forward_type", "reglu", "feed_forward_type is 'reglu'; only 'geglu'"),
        ("feed_forward_type", "original", "feed_forward_type is 'original'; only 'geglu'"),
        # jina-embeddings-v2-base-code: the same keys, but queries and keys are normalized.
        (
            "auto_map",
            {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"},
            "auto_map gives 'jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel' for AutoModel",
        ),
    ],
)
def test_other_jina_models_are_refused(published: Any, key: str, value: Any, message: str) -> None:
    config = published.tiny(**{key: value})
    assert own_backbone(config) == "jina"
    with pytest.raises(SourceError, match=rf"^config\.json: {message}"):
        build_alibi_bert(config)
