"""Tiny bi-encoders in the layouts of Qwen3-Embedding and EmbeddingGemma, written by sentence-transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from support.sentence_modules import Dense, Normalize, Pooling, Transformer
from support.tiny_tokenizers import answering, ending, unsplit

# The published prompt, whose end and a query's beginning are one word of the tokenizer.
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"num_key_value_heads": 2},
    # A window of 8 tokens, and all tokens in every second layer.
    "gemma3_text": {
        "num_key_value_heads": 1,
        "use_bidirectional_attention": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 16,
    },
}


def transformer(folder: Path, model_type: str, padding_side: str) -> Any:
    """Write a random backbone, and open it as sentence-transformers' module."""
    if model_type == "qwen3":
        tokenizer, names = ending(answering(), "", "<|endoftext|>"), ("<|im_end|>", "<|endoftext|>")
    else:
        tokenizer, names = ending(unsplit(), "<bos>", "<eos>"), ("<eos>", "<pad>")
    special = dict(zip(("eos_token", "pad_token"), names, strict=True))
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side=padding_side, **special)
    saved.save_pretrained(folder)
    ids = {f"{key}_id": tokenizer.token_to_id(name) for key, name in special.items()}
    values = SIZES | {"vocab_size": tokenizer.get_vocab_size()} | ids | KINDS[model_type]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModel.from_config(AutoConfig.for_model(model_type, **values)).eval()
        for name, weight in model.named_parameters():
            if "norm" in name:  # which would otherwise start without effect
                nn.init.normal_(weight, 0.0 if model_type.startswith("gemma") else 1.0, 0.2)
    model.save_pretrained(folder)
    return Transformer(str(folder))


def save_qwen3(folder: Path, padding_side: str = "left") -> SentenceTransformer:
    """Write a folder as Qwen/Qwen3-Embedding-0.6B."""
    return saved(
        folder,
        [
            transformer(folder / "base", "qwen3", padding_side),
            Pooling(32, pooling_mode="lasttoken"),
            Normalize(),
        ],
        {"query": INSTRUCTION, "document": ""},
    )


def save_gemma(folder: Path, *behind: Any, padding_side: str = "right") -> SentenceTransformer:
    """Write a folder as google/embeddinggemma-300m."""
    torch.manual_seed(3)
    layers = behind or (
        Dense(32, 48, bias=False, activation_function=nn.Identity()),
        Dense(48, 24, bias=False, activation_function=nn.Identity()),
        Normalize(),
    )
    return saved(
        folder,
        [
            transformer(folder / "base", "gemma3_text", padding_side),
            Pooling(32, pooling_mode="mean"),
            *layers,
        ],
        {"query": "task: search result | query: ", "document": "title: none | text: "},
    )


def saved(folder: Path, modules: list[Any], prompts: dict[str, str]) -> SentenceTransformer:
    model = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, similarity_fn_name="cosine")
    model.save(str(folder / "saved"), create_model_card=False)
    # transformers 4.57 halves Gemma's window each time it reads a configuration, so only the folder counts.
    return SentenceTransformer(str(folder / "saved"), device="cpu")


SAVERS: dict[str, Callable[[Path], SentenceTransformer]] = {"last token": save_qwen3, "dense": save_gemma}
