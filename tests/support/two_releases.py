"""Models saved by one release of transformers, and read by rankers of another release.

`python -m support.two_releases READ WRITE` writes its models to the second folder, reads those of both
folders, and prints as JSON: its release, and the tokens and scores by folder and model.
"""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from support.sentence_modules import Pooling
from support.tiny_tokenizers import OF_PIECES, fast_class, pieces_of, save_tokenizer, sentence_starts

QUERY = "how does a neural search engine rank"
TEXTS = [
    "A Query and its tokens: windows slide over text, 漢字 and café.",
    "hello world " * 40,
    "naïve straße",
]

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
    "num_labels": 1,
}
# transformers 5 has classes for these pieces; 4.57 reads them from the file. Each release saves what it can.
PIECES = {"roberta": "BPE", "xlm-roberta": "Unigram"}
ROTARY: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "qwen3": {"rope_theta": 300.0, "num_key_value_heads": 2, "head_dim": 8},
    "modernbert": {"global_rope_theta": 300.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 2},
}
TEMPLATE = "{% for each in messages %}{{ each.role }}: {{ each.content }}</s>{% endfor %}"
MODEL_TYPES = ("bert", "electra", "distilbert", "deberta-v2", *PIECES, *ROTARY)


def write(folder: Path) -> None:
    """Save a cross-encoder of every type in transformers' format, and artifacts."""
    for number, model_type in enumerate(MODEL_TYPES):
        made = folder / model_type
        if model_type in ROTARY:
            names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
            saved = PreTrainedTokenizerFast(tokenizer_object=sentence_starts(), **names)
            saved.save_pretrained(made)
        else:
            kind = pieces_of(fast_class(model_type)) or PIECES.get(model_type)
            saved = save_tokenizer(OF_PIECES[kind](), made, model_type)
        config = AutoConfig.for_model(
            model_type,
            **TINY | ROTARY.get(model_type, {}),
            vocab_size=len(saved),
            pad_token_id=saved.pad_token_id,
            bos_token_id=saved.bos_token_id,
            eos_token_id=saved.eos_token_id,
        )
        torch.manual_seed(number)
        AutoModelForSequenceClassification.from_config(config).eval().save_pretrained(made)
    torch.manual_seed(0)
    encoder = folder / "encoder"
    save_tokenizer(OF_PIECES["WordPiece"](), encoder, "bert")
    AutoModel.from_pretrained(folder / "bert").save_pretrained(encoder)
    save_ranker(new_ranker("parade-attn", encoder, seed=1, max_query_tokens=20), folder / "artifact")
    save_ranker(new_ranker("biencoder", encoder, seed=1), folder / "biencoder")
    shutil.copytree(folder / "qwen3", folder / "templated")
    (folder / "templated" / "chat_template.jinja").write_text(TEMPLATE)
    if int(version("sentence-transformers").partition(".")[0]) >= 6:
        _write_modular(encoder, folder / "modular")


def _write_modular(encoder: Path, folder: Path) -> None:
    """Save a cross-encoder of several modules, in a format that sentence-transformers 5.1 does not know."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import Dense, Transformer

    modules = [
        Transformer(str(encoder)),
        Pooling(TINY["hidden_size"], pooling_mode="cls"),
        Dense(TINY["hidden_size"], 1, activation_function=nn.Identity(), module_output_name="scores"),
    ]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(folder))


def read(folder: Path) -> dict[str, Any]:
    """Return each model's tokens of a pair, or of both texts, and its scores."""
    return {made.name: _read(made) for made in sorted(folder.iterdir()) if made.name != "encoder"}


def _read(made: Path) -> dict[str, Any]:
    ranker = open_ranker(made, window=40)
    reader = ranker.reader
    query = reader.read_query(QUERY)
    inputs = [
        reader.chunk_input(query if reader.spec.plan == "pair" else None, chunk)
        for text in TEXTS
        for chunk in reader.split(reader.read_document(text))
    ]
    return {
        "tokens": [[item.input_ids.tolist(), item.token_type_ids.tolist()] for item in inputs],
        "scores": [item.score for item in ranker.score(QUERY, TEXTS)],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    reading, writing = map(Path, sys.argv[1:])
    write(writing)
    print(json.dumps([transformers.__version__, read(reading), read(writing)]))
