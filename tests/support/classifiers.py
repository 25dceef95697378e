"""Classifiers of transformers at tiny sizes, which are opened as cross-encoders."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from support.tiny_tokenizers import save_tokenizer, wordpiece

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.25,
    "max_position_embeddings": 128,
}
# Each has its own kind of inputs, positions or head.
CROSS_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "xlm-roberta": {"max_position_embeddings": 130},
    "electra": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {"num_hidden_layers": 2, "global_attn_every_n_layers": 2, "local_attention": 16},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64},
}


def cross_encoder(kind: str, folder: Path, labels: int = 1) -> Ranker:
    tokenizer = save_tokenizer(wordpiece(), folder, "bert")
    config = AutoConfig.for_model(
        kind,
        **(SMALL | CROSS_ENCODERS[kind]),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        num_labels=labels,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return open_ranker(folder)
