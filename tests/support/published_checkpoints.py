"""Facts of two published checkpoints: their `config.json`, and the names and shapes of their tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.backbones.alibi_bert import build_alibi_bert, rename_published

Shapes = dict[str, tuple[int, ...]]

# huggingface.co/jinaai/jina-embeddings-v2-base-en, config.json, including fields that no module reads.
JINA_CONFIG: dict[str, Any] = {
    "_name_or_path": "jinaai/jina-bert-implementation",
    "model_max_length": 8192,
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModelForMaskedLM": "jinaai/jina-bert-implementation--modeling_bert.JinaBertForMaskedLM",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        "AutoModelForSequenceClassification": (
            "jinaai/jina-bert-implementation--modeling_bert.JinaBertForSequenceClassification"
        ),
    },
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "torch_dtype": "float32",
    "transformers_version": "4.26.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30528,
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}

# huggingface.co/mosaicml/mosaic-bert-base-seqlen-2048, config.json.
MOSAIC_CONFIG: dict[str, Any] = {
    "_name_or_path": "mosaicml/mosaic-bert-base-seqlen-2048",
    "alibi_starting_size": 2048,
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "auto_map": {
        "AutoConfig": "configuration_bert.BertConfig",
        "AutoModelForMaskedLM": "bert_layers.BertForMaskedLM",
    },
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "transformers_version": "4.25.1",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30528,
}

TINY: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,  # as published, because the slopes depend on it
    "intermediate_size": 20,
    "layer_norm_eps": 1e-5,
}


def shared_shapes(config: Mapping[str, Any], prefix: str) -> Shapes:
    """All shapes but projections': huggingface/candle, jina_bert.rs; mosaicml/examples, bert_layers.py."""
    hidden, units = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for n in range(config["num_hidden_layers"]):
        shapes |= {
            f"encoder.layer.{n}.attention.output.dense.weight": (hidden, hidden),
            f"encoder.layer.{n}.attention.output.dense.bias": (hidden,),
            f"encoder.layer.{n}.attention.output.LayerNorm.weight": (hidden,),
            f"encoder.layer.{n}.attention.output.LayerNorm.bias": (hidden,),
            f"encoder.layer.{n}.mlp.gated_layers.weight": (2 * units, hidden),
            f"encoder.layer.{n}.mlp.wo.weight": (hidden, units),
            f"encoder.layer.{n}.mlp.wo.bias": (hidden,),
            f"encoder.layer.{n}.mlp.layernorm.weight": (hidden,),
            f"encoder.layer.{n}.mlp.layernorm.bias": (hidden,),
        }
    return {prefix + name: shape for name, shape in shapes.items()}


def masked_language_head(config: Mapping[str, Any]) -> Shapes:
    """BERT's head: mosaicml/examples, bert/src/bert_layers.py, BertLMPredictionHead."""
    hidden, words = config["hidden_size"], config["vocab_size"]
    return {
        "cls.predictions.transform.dense.weight": (hidden, hidden),
        "cls.predictions.transform.dense.bias": (hidden,),
        "cls.predictions.transform.LayerNorm.weight": (hidden,),
        "cls.predictions.transform.LayerNorm.bias": (hidden,),
        "cls.predictions.decoder.weight": (words, hidden),
        "cls.predictions.decoder.bias": (words,),
    }


def jina_shapes(config: Mapping[str, Any]) -> tuple[Shapes, Shapes]:
    hidden = config["hidden_size"]
    encoder = shared_shapes(config, "")
    for n in range(config["num_hidden_layers"]):
        for part in ("query", "key", "value"):
            encoder[f"encoder.layer.{n}.attention.self.{part}.weight"] = (hidden, hidden)
            encoder[f"encoder.layer.{n}.attention.self.{part}.bias"] = (hidden,)
    return encoder, {"pooler.dense.weight": (hidden, hidden), "pooler.dense.bias": (hidden,)}


def mosaic_shapes(config: Mapping[str, Any]) -> tuple[Shapes, Shapes]:
    hidden = config["hidden_size"]
    encoder = shared_shapes(config, "bert.")
    for n in range(config["num_hidden_layers"]):
        encoder[f"bert.encoder.layer.{n}.attention.self.Wqkv.weight"] = (3 * hidden, hidden)
        encoder[f"bert.encoder.layer.{n}.attention.self.Wqkv.bias"] = (3 * hidden,)
    return encoder, masked_language_head(config)


@dataclass(frozen=True)
class Published:
    """A checkpoint's facts. `shapes` returns those of the encoder's tensors and those of all others.

    `megabytes` is the size of the weights file on the hub; `bytes` is the size of a number in it.
    """

    kind: str
    config: dict[str, Any]
    megabytes: float
    bytes: int
    shapes: Callable[[Mapping[str, Any]], tuple[Shapes, Shapes]]

    def tiny(self, **changes: Any) -> dict[str, Any]:
        return {**self.config, **TINY, **changes}

    def tensors(self, config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
        """Make random tensors under the published names, wide enough that each affects the result."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: 0.7 * torch.randn(shape, generator=generator, dtype=torch.float64)
            for part in self.shapes(config)
            for name, shape in part.items()
        }

    def model(self, config: Mapping[str, Any], seed: int = 0) -> nn.Module:
        model = build_alibi_bert(config).double()
        model.load_state_dict(rename_published(model, self.tensors(config, seed)))
        return model.eval()


PUBLISHED = {
    "jina": Published("jina", JINA_CONFIG, 275, 2, jina_shapes),
    "mosaic": Published("mosaic", MOSAIC_CONFIG, 550, 4, mosaic_shapes),
}
