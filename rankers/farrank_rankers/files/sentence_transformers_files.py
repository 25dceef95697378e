"""Settings in sentence-transformers' files besides the transformer's own: pooling, prompts, activations."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import (
    BiEncoderOptions,
    CrossEncoderOptions,
    Head,
    HeadLayer,
    TextPooling,
)
from farrank_rankers.files.chat_templates import classifier_prompt
from farrank_rankers.files.dense_layers import hidden_size, read_dense, read_norm
from farrank_rankers.files.model_files import ModelFiles, is_static
from farrank_rankers.files.saved_modules import (
    CONFIG,
    MODULES,
    default_prompt,
    listed_modules,
    module_kinds,
    read_config,
    read_prompts,
)
from farrank_rankers.json_values import read_json, read_value
from farrank_rankers.tokenizer import TextTokenizer

# Increasing functions of torch: logits rank like the values of these functions.
_INCREASING = frozenset(
    """
    CELU ELU Hardsigmoid Hardtanh Identity LeakyReLU LogSigmoid LogSoftmax ReLU ReLU6 SELU Sigmoid Softmax
    Softplus Softsign Tanh
    """.split()  # noqa: SIM905
)

# The name of a pooled vector among sentence-transformers' features.
_SENTENCE = "sentence_embedding"


def cross_encoder_options(files: ModelFiles, tokenizer: TextTokenizer) -> CrossEncoderOptions:
    """Read the prompt around pairs, and check that the logits rank as the published scores do.

    Raises: SourceError naming the file and the key that is damaged or not supported.
    """
    _check_activation(files, read_config(files.folder))
    prompted = classifier_prompt(files.folder, files.transformer, tokenizer)
    return prompted or CrossEncoderOptions(query_prefix=default_prompt(files.folder))


def modular_options(files: ModelFiles, tokenizer: TextTokenizer) -> CrossEncoderOptions:
    """Read the prompt of a cross-encoder of several modules, and the modules after the transformer.

    Raises: SourceError naming the file and the part that is not supported.
    """
    folder = files.folder
    modules, kinds = listed_modules(folder), module_kinds(folder)
    if kinds[:2] != ["Transformer", "Pooling"] or not {"Dense"} <= {*kinds[2:]} <= {"Dense", "LayerNorm"}:
        raise SourceError(
            f"{folder} is a cross-encoder of the modules {', '.join(kinds)[:100]}; only Transformer and "
            "Pooling, then Dense and LayerNorm, at least one Dense, are served; serve it with "
            "sentence-transformers"
        )
    _check_lowercasing(files)
    read = read_json(folder / str(modules[1]["path"]) / "config.json")
    layers: list[HeadLayer] = []
    width = hidden_size(files.config, files.transformer)
    for module, kind in zip(modules[2:], kinds[2:], strict=True):
        path = folder / str(module["path"]) / "config.json"
        written = "scores" if module is modules[-1] else _SENTENCE
        layer = read_dense(path, width, _SENTENCE, written) if kind == "Dense" else read_norm(path, width)
        layers.append(layer)
        width = layers[-1].width
    pooling = _pooling(read, folder)
    if pooling == "last":
        raise SourceError(f"{folder}: pooling is 'lasttoken'; of a cross-encoder only mean or cls is read")
    try:
        head = Head(pooling, tuple(layers))
    except SpecError as error:
        raise SourceError(f"{folder / MODULES}: {error}") from error
    options = cross_encoder_options(files, tokenizer)
    if options.query_prefix and read.get("include_prompt") is False:
        raise SourceError(f"{folder}: prompts that do not take part in pooling are not supported")
    return replace(options, head=head)


def _check_activation(files: ModelFiles, config: Mapping[str, Any]) -> None:
    """Refuse a cross-encoder whose activation changes the order of its logits.

    Newer releases of sentence-transformers name it in their own file, 4 in config.json, earlier ones with
    another key. A function outside torch would be a folder's code, which sentence-transformers ignores, too.
    """
    own = files.config.get("sentence_transformers")
    named = {
        f"{files.folder / CONFIG}: activation_fn": config.get("activation_fn"),
        f"{files.folder / 'config.json'}: sentence_transformers.activation_fn": (
            own.get("activation_fn") if isinstance(own, Mapping) else own
        ),
        f"{files.folder / 'config.json'}: sbert_ce_default_activation_function": files.config.get(
            "sbert_ce_default_activation_function"
        ),
    }
    key, name = next(((key, name) for key, name in named.items() if name is not None), ("", None))
    if name is None:
        return
    read_value(str, name, key, SourceError)
    module, _, function = name.rpartition(".")
    if module.split(".")[0] == "torch" and function not in _INCREASING:
        raise SourceError(
            f"{key} is {name!r}; scores here are logits, which only an increasing function leaves in their "
            f"order: {', '.join(sorted(_INCREASING))}"
        )


def biencoder_options(files: ModelFiles) -> BiEncoderOptions:
    """Read pooling, normalization and prompts.

    Raises: SourceError naming the file and the part that is not supported.
    """
    folder = files.folder
    modules, kinds = listed_modules(folder), module_kinds(folder)
    static = is_static(folder)
    count = kinds.count("Dense")
    beginning = ["StaticEmbedding"] if static else ["Transformer", "Pooling", *["Dense"] * count]
    if kinds not in (beginning, [*beginning, "Normalize"]):
        raise SourceError(
            f"{folder / MODULES} lists {', '.join(kinds)}; only Transformer, Pooling, Dense and Normalize, "
            "in this order, are read, or StaticEmbedding and Normalize"
        )
    similarity = read_config(folder).get("similarity_fn_name") or "cosine"
    if similarity not in ("cosine", "dot"):
        raise SourceError(
            f"{folder / CONFIG}: similarity_fn_name is {similarity!r}; it must be cosine or dot"
        )
    key = f"{folder / CONFIG}: truncate_dim"
    truncate_dim: int | None = read_value(
        int | None, read_config(folder).get("truncate_dim"), key, SourceError
    )
    prompts = {name: text for name, text in read_prompts(folder).items() if text}
    query = prompts.get("query", "")
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
    pooling: TextPooling = "mean"
    head: list[HeadLayer] = []
    if not static:
        for module in modules[2 : 2 + count]:
            width = head[-1].width if head else hidden_size(files.config, files.transformer)
            head.append(read_dense(folder / str(module["path"]) / "config.json", width, _SENTENCE))
        _check_lowercasing(files)
        read = read_json(folder / str(modules[1]["path"]) / "config.json")
        if (query or document) and read.get("include_prompt") is False:
            raise SourceError(f"{folder}: prompts that do not take part in pooling are not supported")
        pooling = _pooling(read, folder)
    return BiEncoderOptions(
        pooling=pooling,
        normalize="Normalize" in kinds or similarity == "cosine",
        query_prefix=query,
        document_prefix=document,
        truncate_dim=truncate_dim,
        head=tuple(head),
    )


def _check_lowercasing(files: ModelFiles) -> None:
    path = files.transformer / "sentence_bert_config.json"
    if path.is_file() and read_json(path).get("do_lower_case"):
        # Outside the tokenizer, lowercasing would shift offsets.
        normalizer = read_json(files.transformer / "tokenizer.json").get("normalizer") or {}
        if not normalizer.get("lowercase"):
            raise SourceError(f"{path}: do_lower_case is true, but tokenizer.json does not lowercase")


def _pooling(config: dict[str, Any], folder: Path) -> TextPooling:
    prefix = "pooling_mode_"
    modes = {name.removeprefix(prefix) for name, on in config.items() if on is True and prefix in name}
    named = config.get("pooling_mode")  # newer releases name the only mode
    if modes == {"mean_tokens"} or named == "mean":
        return "mean"
    if modes == {"cls_token"} or named == "cls":
        return "cls"
    if modes == {"lasttoken"} or named == "lasttoken":
        return "last"
    raise SourceError(
        f"{folder}: pooling is {sorted(modes) or named!r}; only mean_tokens, cls_token or lasttoken is read"
    )
