"""Weights from safetensors files, and only from those, into modules built without weights."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from farrank_rankers.backbones.alibi_bert import AlibiBert, rename_published
from farrank_rankers.backbones.alibi_checkpoints import PUBLISHED
from farrank_rankers.backbones.static_embedding import StaticEmbedding, rename_static
from farrank_rankers.errors import RankerError, SourceError, WeightsError
from farrank_rankers.files.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter, merged
from farrank_rankers.files.model_files import Location, ModelFiles, hub_checksum, is_pointer, pointer_message
from farrank_rankers.files.multi_vector_files import PROJECTION, dense_folders
from farrank_rankers.files.saved_modules import kind_of, listed_modules
from farrank_rankers.json_values import read_json
from farrank_rankers.not_served import GGUF, GRAPHS_ALONE, PICKLED
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_published(reader: Reader, files: ModelFiles) -> Ranker:
    """Build a ranker around a published model's weights; missing weights stay without memory.

    Raises: WeightsError if weights are damaged or do not fit.
    """
    ranker = build_empty(reader, files)
    fill_published(ranker.encoder.backbone, files)
    fill_own(ranker, files)
    return ranker


def fill_own(ranker: Ranker, files: ModelFiles) -> None:
    """Copy the weights of a family's encoder besides the backbone, if a published checkpoint has them.

    Raises: WeightsError naming the file, the tensor and what was expected; SpecError if the ranker names a
    token that the checkpoint's tokenizer does not have.
    """
    targets = ranker.encoder.state_dict(keep_vars=True)
    if not any(not name.startswith("backbone.") for name in targets):
        return
    published = read_weights(files.transformer)
    if files.kind == "maxsim":
        layers = [read_weights(folder) for folder in dense_folders(files.folder)]
        layers = layers or [{"linear.weight": published[PROJECTION]}]
        for place, of_layer in enumerate(layers):
            published |= {f"head.{place}.{name}": tensor for name, tensor in of_layer.items()}
    if files.kind in ("modular", "biencoder"):
        modules = [each for each in listed_modules(files.settings.folder)[2:] if kind_of(each) != "Normalize"]
        for place, module in enumerate(modules):
            of_layer = read_weights(files.settings.folder / str(module["path"]))
            published |= {f"head.{place}.{name}": tensor for name, tensor in of_layer.items()}
    found = ranker.encoder.own_weights(published, ranker.reader)
    for name, tensor in found.items():
        if name not in targets:
            raise WeightsError(f"{files.folder} has the tensor {name}, which the model does not have")
        copy(name, tensor, targets[name], files.transformer / FILE)


def build_empty(reader: Reader, files: ModelFiles) -> Ranker:
    """Build a ranker whose weights have shapes but no memory."""
    with without_weights():
        return build(reader, dict(files.config), seed=0)


def build(reader: Reader, config: dict[str, Any], seed: int) -> Ranker:
    """Build a ranker with random weights that depend only on the seed.

    Raises: SourceError if transformers cannot build the backbone, SpecError if the family cannot.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return Ranker(reader, config)
        except RankerError:
            raise
        except Exception as error:  # an impossible size may fail anywhere in transformers and torch
            raise SourceError(f"config.json of {reader.spec.backbone} cannot be built: {error}") from error


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules whose parameters have shapes but no memory until `fill` assigns tensors.

    Buffers are built normally: no file has the values that a module computes, such as rotary frequencies.
    """
    building = threading.get_ident()

    def emptied(module: nn.Module, name: str, parameter: Tensor | None) -> Tensor | None:
        # The hook is called for modules of all threads. A tied parameter comes twice and must stay the same
        # object.
        if parameter is None or parameter.is_meta or threading.get_ident() != building:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    # torch registers the hook's result, although its annotation says that hooks return nothing.
    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def place(module: nn.Module, device: torch.device, dtype: torch.dtype, *, copy: bool = False) -> None:
    """Move weights to a device and dtype, one tensor at a time to save memory.

    Buffers that are in no file keep their dtype: rotary frequencies in bf16 would confuse distant positions.
    With `copy`, tensors with the right device and dtype are copied, too.
    """
    weights = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    for tensor in chain(module.parameters(), module.buffers()):
        converted = id(tensor) in weights and tensor.is_floating_point()
        tensor.data = tensor.data.to(device, dtype if converted else tensor.dtype, copy=copy)


def fill_published(backbone: nn.Module, files: ModelFiles, *, new_head: bool = False) -> None:
    """Copy a published checkpoint into the backbone of its config.json.

    With `new_head`, the head's weights may be missing.
    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    path = files.transformer / FILE
    if isinstance(backbone, StaticEmbedding):
        fill(backbone, rename_static(read_weights(files.transformer), path), path)
        return
    if not isinstance(backbone, AlibiBert):
        fill_backbone(backbone, files.transformer, new_head=new_head)
        return
    tensors = rename_published(backbone, read_weights(files.transformer), path)
    fill(backbone, tensors, path, PUBLISHED[backbone.kind].name)


def fill_backbone(backbone: nn.Module, folder: Path, *, new_head: bool = False) -> None:
    """Copy a checkpoint into a transformers model; with `new_head`, the head's weights may be missing.

    A base model reads the checkpoint of a model with a head, and vice versa; old names of LayerNorm's tensors
    are supported. Tensors that the model does not have (another task's head) are ignored.
    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    tensors = {}
    for name, tensor in read_weights(folder).items():  # TensorFlow's names become torch's
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        )
        tensors[modern] = tensor
    prefix = f"{getattr(backbone, 'base_model_prefix', '')}."
    loaded: set[int] = set()
    missing: dict[str, Tensor] = {}
    for name, target in backbone.state_dict(keep_vars=True).items():
        # Gemma 3's backbone is in `model`, and its prefix in transformers 4.57 another.
        names = (name, prefix + name, f"model.{name}", name.removeprefix(prefix))
        found = next((tensors[each] for each in names if each in tensors), None)
        if found is not None:
            copy(name, found, target, folder / FILE)
            loaded.add(id(target))
        else:
            missing[name] = target
    for name, target in missing.items():
        is_head = not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")
        if id(target) not in loaded and not (new_head and loaded and is_head):
            raise WeightsError(f"{folder / FILE} lacks the tensor {name} of shape {tuple(target.shape)}")


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], source: Path, published: Callable[[str], str] = str
) -> None:
    """Copy tensors into the module's tensors of the same names, which must match exactly.

    `published` gives a tensor's name in the source, if that differs.
    Raises: WeightsError naming `source`, the tensor and what was expected.
    """
    wanted = distinct(module)
    unknown = sorted(tensors.keys() - module.state_dict().keys())
    if unknown:
        raise WeightsError(f"{source} has the tensor {unknown[0]}, which the model does not have")
    for name, target in wanted.items():
        if name not in tensors:
            raise WeightsError(f"{source} lacks the tensor {published(name)} of shape {tuple(target.shape)}")
        copy(published(name), tensors[name], target, source)


def copy(name: str, tensor: Tensor, target: Tensor, source: Path) -> None:
    """Copy one tensor; a target without memory is replaced by the tensor itself in all modules.

    Raises: WeightsError naming `source`, the tensor and what was expected.
    """
    if tensor.shape != target.shape:
        raise WeightsError(
            f"{source}: tensor {name} has shape {tuple(tensor.shape)}; "
            f"the model expects {tuple(target.shape)}"
        )
    if tensor.is_floating_point() != target.is_floating_point():
        raise WeightsError(f"{source}: tensor {name} is {tensor.dtype}; the model expects {target.dtype}")
    if target.is_meta:
        given = nn.Parameter(tensor, requires_grad=target.requires_grad)
        torch.utils.swap_tensors(target, given)  # type: ignore[no-untyped-call]
        return
    with torch.no_grad():
        target.copy_(tensor)


def distinct(module: nn.Module) -> dict[str, Tensor]:
    """List the names of a module's tensors, one name for tied tensors (embeddings)."""
    seen: dict[int, str] = {}
    named = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in named.items() if seen.setdefault(id(tensor), name) == name}


# The places where exporters put graphs, next to weights or instead of them. Graphs whose names have their
# precision are served without `export_file`.
_GRAPHS = ("*.onnx", "onnx/*.onnx", "openvino/*.xml")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read a folder's tensors, from one file or from the shards that an index names.

    The tensors of a LoRA adapter's folder are its base's with the adapter's differences.
    Raises: WeightsError naming the file that is missing or damaged.
    """
    if (folder / CONFIG_FILE).is_file():
        base = ModelFiles.find(Location(folder, folder.name)).base
        assert base is not None, "an adapter has a base"
        path = folder / WEIGHTS_FILE
        if not path.is_file():
            raise WeightsError(_hint(folder) or f"{path} is missing")
        return merged(read_weights(base.transformer), read_tensors(path), Adapter.read(folder), path)
    index, shards = folder / INDEX, [FILE]
    if not (folder / FILE).is_file() and index.is_file():
        try:
            shards = sorted(set(read_json(index)["weight_map"].values()))
        except SourceError as error:
            raise WeightsError(str(error)) from error
        except (KeyError, AttributeError, TypeError) as error:
            raise WeightsError(f"{index} cannot be read: {error!r}") from error
    tensors: dict[str, Tensor] = {}
    for path in (folder / Path(shard).name for shard in shards):
        if not path.is_file():
            raise WeightsError(_hint(folder) or f"{path} is missing")
        tensors |= read_tensors(path)
    return tensors


def _hint(folder: Path) -> str:
    """Say which other weights a folder has, and what to do with them; empty if there are none."""
    graphs = sorted(path for each in _GRAPHS for path in folder.glob(each))
    if pointers := [path for path in graphs if is_pointer(path)]:
        return f"{folder / FILE} is missing; {pointer_message(pointers[0])}"
    for kind, found in (
        (PICKLED, folder.glob("*.bin")),
        (GRAPHS_ALONE, graphs),
        (GGUF, folder.glob("*.gguf")),
    ):
        if names := sorted(path.relative_to(folder).as_posix() for path in found):
            return str(kind.error(", ".join(names), folder))
    return ""


# The key in a safetensors file's metadata of its ranker's `Ranker.weights_digest`.
DIGEST = "farrank_weights_digest"


def said_digest(path: Path) -> str | None:
    """Read the digest of the weights in a file's metadata; None if it has none, or does not exist.

    Raises: WeightsError naming the file if it is damaged.
    """
    if not path.is_file():
        return None
    with reading(path), safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get(DIGEST)


def check_weights(ranker: Ranker, folder: Path) -> None:
    """Check weights against the digest in their file; each must be a finite number.

    Raises: WeightsError naming the file, and the tensor that is wrong.
    """
    path = folder / FILE
    digest = said_digest(path)
    if digest is not None and digest != ranker.weights_digest:
        raise WeightsError(
            f"{path} is damaged: its weights have the digest {ranker.weights_digest}, and were "
            f"written with {digest}; copy it again"
        )
    for name, tensor in distinct(ranker).items():
        # If a sum is finite, so are its terms, and a sum is ten times as fast.
        if tensor.is_floating_point() and not (tensor.sum().isfinite() or tensor.isfinite().all()):
            named = path if path.is_file() else folder
            raise WeightsError(f"{named}: tensor {name} has values that are not finite numbers")


def check_blob(path: Path) -> None:
    """Check a file of the hub's cache against its name there. Raises: WeightsError naming the file."""
    uploaded = hub_checksum(path)
    if uploaded is None:
        return
    with reading(path), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != uploaded:
        raise WeightsError(
            f"{path} is damaged: {path.resolve()} has the SHA-256 {found}; delete it, and download it again"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a weights file. Raises: WeightsError naming it."""
    if is_pointer(path):
        raise WeightsError(pointer_message(path))
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path} is damaged or not a safetensors file: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file's tensors. Raises: WeightsError naming it."""
    check_blob(path)
    with reading(path):
        return load_file(path)


def write_weights(tensors: Mapping[str, Tensor], path: Path, digest: str | None = None) -> None:
    """Write tensors to a file, replacing an existing one, with a ranker's `digest` of them.

    Raises: WeightsError naming the file if it cannot be written.
    """
    try:
        # safetensors makes a file that only its owner may read. A file of Python's has the umask's
        # permissions.
        path.unlink(missing_ok=True)
        path.touch()
        permissions = path.stat().st_mode
        save_file(dict(tensors), path, None if digest is None else {DIGEST: digest})
        path.chmod(permissions)
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        raise WeightsError(f"{path} cannot be written: {error}") from error
