"""What the files beside a sentence-transformers model say, read without that library."""

from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError
from farrank_rankers.family import BiEncoderOptions, Pooling
from farrank_rankers.files.json_files import read_json, read_json_list

_PREFIX = "sentence_transformers.models."


def backbone_folder(folder: Path) -> Path:
    """Find the folder of the transformer inside the model's."""
    return folder / str(_modules(folder)[0]["path"])


def biencoder_options(folder: Path) -> BiEncoderOptions:
    """Read pooling, normalization and prompts.

    Raises: SourceError naming the file and the part that a bi-encoder here does not have.
    """
    modules = _modules(folder)
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise SourceError(
            f"{folder / 'modules.json'} lists {', '.join(kinds)}; "
            "only Transformer, Pooling and Normalize are read"
        )
    path = folder / "config_sentence_transformers.json"
    config = read_json(path) if path.is_file() else {}
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in ("cosine", "dot"):
        raise SourceError(f"{path}: similarity_fn_name is {similarity!r}; it must be cosine or dot")
    _refuse_lowercasing(backbone_folder(folder))
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text}
    query = prompts.get("query", "")
    document = prompts.get("document", prompts.get("passage", ""))
    pooling = read_json(folder / str(modules[1]["path"]) / "config.json")
    if (query or document) and pooling.get("include_prompt") is False:
        raise SourceError(f"{folder}: prompts that do not take part in pooling are not supported")
    return BiEncoderOptions(
        pooling=_pooling(pooling, folder),
        normalize="Normalize" in kinds or similarity == "cosine",
        query_prefix=query,
        document_prefix=document,
    )


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules = read_json_list(folder / "modules.json")
    if not modules or not all("type" in module and "path" in module for module in modules):
        raise SourceError(f"{folder / 'modules.json'} must list modules with type and path")
    return modules


def _pooling(config: dict[str, Any], folder: Path) -> Pooling:
    modes = {name.removeprefix("pooling_mode_") for name, on in config.items() if on is True}
    modes &= {
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    }
    named = config.get("pooling_mode")  # newer releases name the one mode
    if modes == {"mean_tokens"} or named == "mean":
        return "mean"
    if modes == {"cls_token"} or named == "cls":
        return "cls"
    raise SourceError(
        f"{folder}: pooling is {sorted(modes) or named!r}; only mean_tokens or cls_token is read"
    )


def _refuse_lowercasing(folder: Path) -> None:
    """Lowercasing outside the tokenizer would have to happen before offsets are taken."""
    path = folder / "sentence_bert_config.json"
    if not path.is_file() or not read_json(path).get("do_lower_case"):
        return
    normalizer = read_json(folder / "tokenizer.json").get("normalizer") or {}
    if not normalizer.get("lowercase"):
        raise SourceError(f"{path}: do_lower_case is true, but tokenizer.json does not lowercase")
