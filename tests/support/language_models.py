"""Tiny language models of the architectures of published rerankers, in the same folder format."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from support.tiny_tokenizers import answering, unsplit

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    # Wide enough that scores differ, but not so wide that rounding exceeds 1e-5.
    "initializer_range": 0.15,
}

# The distinctive features of each kind: heads that are not the hidden size's share, embeddings tied or not.
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "gemma": {"head_dim": 16, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "gemma2": {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "sliding_window": 24,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "llama": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": 24},
    "olmo2": {},
    "phi": {},
    "phi3": {"pad_token_id": 0},
    "smollm3": {},
}


def make_language_model(folder: Path, model_type: str, **changes: Any) -> Path:
    """Write a random language model with a real tokenizer of its kind."""
    gemma = model_type.startswith("gemma")
    tokenizer = unsplit() if gemma else answering()
    names = ("<bos>", "<eos>", "<pad>") if gemma else (None, "<|im_end|>", "<|endoftext|>")
    special = {
        key: name for key, name in zip(("bos_token", "eos_token", "pad_token"), names, strict=True) if name
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    ids = {f"{key}_id": tokenizer.token_to_id(name) for key, name in special.items()}
    values = SIZES | {"vocab_size": tokenizer.get_vocab_size()} | ids | KINDS[model_type] | changes
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values)).eval()
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # which would otherwise start without effect
                torch.nn.init.normal_(weight, 0.0 if gemma or name.endswith("bias") else 1.0, 0.2)
    model.save_pretrained(folder)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
