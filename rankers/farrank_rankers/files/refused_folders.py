"""Recognise published models of a kind that is not served, by the small files of their folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farrank_rankers import not_served
from farrank_rankers.backbone_facts import own_backbone
from farrank_rankers.files.saved_modules import MODULES, listed_modules, read_config
from farrank_rankers.json_values import read_json

# By the class that sentence-transformers' own file names.
_CLASSES = {"SparseEncoder": not_served.SPARSE}
# By a part of an architecture's name, or of a module's with its package.
_PARTS = {
    "JinaForRanking": not_served.LISTWISE,
    "TokenPooling": not_served.TOKEN_POOLING,
    "Splade": not_served.SPARSE,
    "sparse_encoder": not_served.SPARSE,
    "VL": not_served.IMAGES,
}


def refuse_unserved(folder: Path, name: str) -> None:
    """Refuse the published model `name` if its kind is not served.

    Raises: SourceError with the kind, the reason and an alternative, or naming a damaged file.
    """
    if not (folder / "config.json").is_file() and not (folder / MODULES).is_file():
        _refuse_without_configuration(folder, name)
        return
    of_class = read_config(folder).get("model_type")
    if isinstance(of_class, str) and of_class in _CLASSES:
        raise _CLASSES[of_class].error(f"model_type {of_class}", folder)
    modules = listed_modules(folder) if (folder / MODULES).is_file() else []
    path = folder / str(modules[0]["path"] if modules else "") / "config.json"
    config = read_json(path) if path.is_file() else {}
    architectures = config.get("architectures")
    named = [str(each["type"]) for each in modules]
    named += map(str, architectures) if isinstance(architectures, list) else []
    for each in named:
        for part, kind in _PARTS.items():
            if part in each:
                raise kind.error(each.rpartition(".")[2], folder)
    is_classifier = any(each.endswith("ForSequenceClassification") for each in named)
    if "vision_config" in config:
        raise not_served.IMAGES.error(f"model_type {config.get('model_type')}", folder)
    if config.get("is_encoder_decoder") is True and not is_classifier:
        raise not_served.ENCODER_DECODER.error(f"model_type {config.get('model_type')}", folder)
    if own_backbone(config) is None and (code := _code(config)) is not None:
        raise not_served.OWN_CODE.error(code, folder)


def _refuse_without_configuration(folder: Path, name: str) -> None:
    graphs = sorted(path.name for path in folder.glob("*.gguf"))
    if graphs or name.lower().endswith("gguf"):
        raise not_served.GGUF.error(graphs[0] if graphs else "", folder)


def _code(config: Mapping[str, Any]) -> str | None:
    """Name the class of a folder's own code that makes the model; those of its tokenizer do not count."""
    named = config.get("auto_map")
    models = named.items() if isinstance(named, Mapping) else ()
    return next((str(value) for key, value in models if str(key).startswith("AutoModel")), None)
