"""What lies in a model's folder, told apart without opening its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from farrank_rankers.backbones.registry import own_backbone
from farrank_rankers.errors import SourceError
from farrank_rankers.family import ENSEMBLE
from farrank_rankers.files.json_files import read_json
from farrank_rankers.files.sentence_transformers import backbone_folder

ModelKind = Literal["artifact", "cross-encoder", "biencoder", "backbone"]
SPEC_FILE = "ranker.json"

# Says how a model was stored or asked for its answers, not what it computes.
_IMMATERIAL = frozenset(
    {
        "_name_or_path",
        "auto_map",
        "dtype",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torch_dtype",
        "torchscript",
        "transformers_version",
    }
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder's kind, where its transformer lies (a subfolder in some), and its parsed config.json."""

    kind: ModelKind
    folder: Path
    transformer: Path
    config: Mapping[str, Any]

    @classmethod
    def find(cls, folder: Path) -> "ModelFiles":
        """Look at a folder's files.

        Raises: SourceError naming the file that is missing or damaged, or a folder of several models.
        """
        if (folder / SPEC_FILE).is_file():
            if lists_members(folder):
                raise SourceError(f"{folder} is an ensemble, not a single ranker")
            return cls("artifact", folder, folder, _read_config(folder))
        if (folder / "config.json").is_file():
            config = _read_config(folder)
            names = config.get("architectures") or []
            if any(str(name).endswith("ForSequenceClassification") for name in names):
                return cls("cross-encoder", folder, folder, config)
        if (folder / "modules.json").is_file():
            transformer = backbone_folder(folder)
            return cls("biencoder", folder, transformer, _read_config(transformer))
        return cls("backbone", folder, folder, _read_config(folder))


def lists_members(folder: Path) -> bool:
    """Look whether a folder is an ensemble's: without a model of its own, its spec names others.

    Raises: SourceError if its ranker.json is damaged.
    """
    if (folder / "config.json").is_file() or not (folder / SPEC_FILE).is_file():
        return False
    return read_json(folder / SPEC_FILE).get("family") == ENSEMBLE


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    # That of a backbone which is written out here says which code its weights were trained with.
    immaterial = _IMMATERIAL if own_backbone(config) is None else _IMMATERIAL - {"auto_map"}
    config = {name: value for name, value in config.items() if name not in immaterial}
    if "model_type" not in config:
        raise SourceError(
            f"{folder / 'config.json'} lacks model_type, by which transformers knows architectures"
        )
    if not isinstance(config["model_type"], str):
        raise SourceError(
            f"{folder / 'config.json'}: model_type is {config['model_type']!r}; it must be a name"
        )
    return config
