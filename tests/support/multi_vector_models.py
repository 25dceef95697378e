"""Tiny multi-vector models in the layouts of sentence-transformers 6, PyLate and Stanford's ColBERT."""

import json
import shutil
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from support.tiny_tokenizers import byte_level, byte_pairs, save_tokenizer, wordpiece

WIDTH = 16
# A query of the words of the tiny tokenizers, and documents with punctuation, of which one has no token.
QUERY = "how does a neural search engine rank, a long document?"
DOCUMENTS = ["windows slide over (the) text.", "hello world, café straße!", "parse [Q] command line", ""]


def save_backbone(folder: Path, model_type: str = "bert", positions: int = 128) -> Path:
    """Save a random backbone whose tokenizer knows punctuation and, if BERT's, Stanford's markers."""
    from transformers import AutoConfig, AutoModel

    pieces = [*string.punctuation, "[unused0]", "[unused1]"]
    tokenizer = {"modernbert": byte_pairs, "roberta": byte_level}.get(model_type, lambda: wordpiece(pieces))()
    folder.mkdir()
    saved = save_tokenizer(tokenizer, folder, model_type)
    mask, pad = ("<mask>", "<pad>") if model_type == "roberta" else ("[MASK]", "[PAD]")
    saved.add_special_tokens({"mask_token": mask})
    saved.save_pretrained(folder)
    config = AutoConfig.for_model(
        model_type,
        hidden_size=32,
        num_hidden_layers=4 if model_type == "modernbert" else 2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.25,
        vocab_size=len(saved),
        max_position_embeddings=positions,
        pad_token_id=tokenizer.token_to_id(pad),
        **({"local_attention": 16} if model_type == "modernbert" else {}),
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        AutoModel.from_config(config).eval().save_pretrained(folder)
    return folder


def save_sentence_transformers(backbone: Path, folder: Path, **given: Any) -> Path:
    """Save a model of sentence-transformers 6.

    `given` may have a tokenizer's `skiplist`, `query_length`, `document_length`, `expansion`, `activation`,
    `normalize` (default true), `dense` (default true), `bias`, `residual`, and MultiVectorEncoder's keywords.
    """
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    lengths = {name: given.pop(name, None) for name in ("query_length", "document_length")}
    expansion = given.pop("expansion", None)
    skiplist = given.pop("skiplist", list(string.punctuation))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        modules: list[nn.Module] = [Transformer(str(backbone), **lengths, query_expansion=expansion)]
        if given.pop("dense", True):
            bias = given.pop("bias", False)
            activation = given.pop("activation", nn.Identity())
            hidden = int(modules[0].get_embedding_dimension())  # type: ignore[operator]
            named: dict[str, Any] = {"module_input_name": "token_embeddings"}
            if given.pop("residual", False):  # as mxbai-edge-colbert, one of the same width and a projection
                modules.append(Dense(hidden, hidden, bias, activation, use_residual=True, **named))
                named["use_residual"] = True
            modules.append(Dense(hidden, WIDTH, bias, activation, **named))
        modules.append(MultiVectorMask(skiplist_words=skiplist))
        if given.pop("normalize", True):
            modules.append(Normalize(module_input_name="token_embeddings"))
    MultiVectorEncoder(modules=modules, device="cpu", **given).save_pretrained(str(folder))
    return folder


def save_pylate(backbone: Path, folder: Path, markers: tuple[str, ...] = (), **config: Any) -> Path:
    """Save a model as PyLate does, whose tokenizer has `markers` as added tokens.

    Source: pylate 1.6.0, models/colbert.py.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(backbone), AutoModel.from_pretrained(backbone)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        if markers:
            tokenizer.add_tokens(list(markers))
            model.resize_token_embeddings(len(tokenizer))
        weight = torch.randn(WIDTH, model.config.hidden_size)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    write(
        folder / "modules.json",
        _modules("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"),
    )
    write(folder / "sentence_bert_config.json", {"max_seq_length": 179, "do_lower_case": False})
    write(folder / "config_sentence_transformers.json", {"model_type": "ColBERT", "prompts": {}} | config)
    _write_dense(folder / "1_Dense", weight)
    return folder


def save_stanford(backbone: Path, folder: Path, **metadata: Any) -> Path:
    """Save a BERT as Stanford's ColBERT does; its metadata are written unless `metadata` is empty."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(backbone)
    AutoTokenizer.from_pretrained(backbone).save_pretrained(folder)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        weight = torch.randn(WIDTH, model.config.hidden_size)
    path = folder / "model.safetensors"
    tensors = {f"bert.{name}": tensor.clone() for name, tensor in load_file(path).items()}
    save_file(tensors | {"linear.weight": weight}, path)
    if metadata:
        write(folder / "artifact.metadata", metadata)
    return folder


def save_hybrid(backbone: Path, folder: Path, **config: Any) -> Path:
    """Save Stanford's weights and PyLate's modules side by side, without a model_type, as answerai does."""
    save_stanford(backbone, folder, query_maxlen=32)
    write(
        folder / "modules.json",
        _modules("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"),
    )
    write(folder / "sentence_bert_config.json", {"max_seq_length": 299, "do_lower_case": False})
    write(
        folder / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"} | config
    )
    _write_dense(folder / "1_Dense", load_file(folder / "model.safetensors")["linear.weight"])
    return folder


def copied(folder: Path, to: Path) -> Path:
    """Copy a folder, to change it."""
    shutil.copytree(folder, to)
    return to


def write(path: Path, value: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(value), encoding="utf-8")


def _modules(transformer: str, dense: str) -> list[dict[str, Any]]:
    return [
        {"idx": 0, "name": "0", "path": "", "type": transformer},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": dense},
    ]


def _write_dense(folder: Path, weight: torch.Tensor) -> None:
    folder.mkdir()
    save_file({"linear.weight": weight}, folder / "model.safetensors")
    width, hidden = weight.shape
    activation = "torch.nn.modules.linear.Identity"
    write(
        folder / "config.json",
        {"in_features": hidden, "out_features": width, "bias": False, "activation_function": activation},
    )
