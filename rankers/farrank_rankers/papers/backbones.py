"""The papers' backbones: what their published `config.json` says of size and kind.

Each entry has the values of the file on huggingface.co under its name, without what only speaks of storage.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

_BERT_BASE: Config = {
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}

_HUB_CODE = "jinaai/jina-bert-implementation"

BACKBONES: Mapping[str, Config] = {
    "google-bert/bert-base-uncased": {**_BERT_BASE, "architectures": ["BertForMaskedLM"]},
    "cross-encoder/ms-marco-electra-base": {
        **_BERT_BASE,
        "model_type": "electra",
        "architectures": ["ElectraForSequenceClassification"],
        "embedding_size": 768,
    },
    "microsoft/deberta-v3-base": {
        **_BERT_BASE,
        "model_type": "deberta-v2",
        "layer_norm_eps": 1e-7,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "position_buckets": 256,
        "relative_attention": True,
        "share_att_key": True,
        "type_vocab_size": 0,
        "vocab_size": 128100,
    },
    "allenai/longformer-base-4096": {
        **_BERT_BASE,
        "model_type": "longformer",
        "attention_window": [512] * 12,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4098,
        "pad_token_id": 1,
        "sep_token_id": 2,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "google/bigbird-roberta-base": {
        **_BERT_BASE,
        "model_type": "big_bird",
        "attention_type": "block_sparse",
        "block_size": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 4096,
        "num_random_blocks": 3,
        "rescale_embeddings": False,
        "sep_token_id": 66,
        "use_bias": True,
        "vocab_size": 50358,
    },
    "jinaai/jina-embeddings-v2-base-en": {
        **_BERT_BASE,
        "architectures": ["JinaBertForMaskedLM"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {"AutoModel": f"{_HUB_CODE}--modeling_bert.JinaBertModel"},
        "feed_forward_type": "geglu",
        "max_position_embeddings": 8192,
        "position_embedding_type": "alibi",
        "vocab_size": 30528,
    },
    "mosaicml/mosaic-bert-base-seqlen-2048": {
        **_BERT_BASE,
        "alibi_starting_size": 2048,
        "architectures": ["BertForMaskedLM"],
        "auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"},
        "vocab_size": 30528,
    },
    "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": {
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 5632,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 22,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "dwzhu/e5-base-4k": {**_BERT_BASE, "architectures": ["BertModel"], "max_position_embeddings": 4096},
}
