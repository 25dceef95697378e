"""Load a ranker's weights: from its files straight to their device and float type."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from farrank_rankers.backbones.alibi_bert import AlibiBert, rename_published
from farrank_rankers.backbones.alibi_checkpoints import PUBLISHED
from farrank_rankers.errors import RankerError, SourceError, WeightsError, naming
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.files.weights import FILE, fill, fill_backbone, read_weights
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules whose parameters have shapes and no memory, until `files.weights` puts tensors there.

    Buffers are made as ever: what a module computes for itself, such as rotary frequencies, is in no file.
    """
    building = threading.get_ident()

    def emptied(module: nn.Module, name: str, parameter: Tensor | None) -> Tensor | None:
        # The hook is called for modules of all threads. A tied parameter comes twice and must stay itself.
        if parameter is None or parameter.is_meta or threading.get_ident() != building:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    # torch registers what the hook returns, although its annotation says that hooks return nothing.
    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def place(module: nn.Module, device: torch.device, dtype: torch.dtype, *, copy: bool = False) -> None:
    """Move weights to a device and a float type, one tensor at a time to save memory.

    Buffers that are in no file keep their type: rotary frequencies in bf16 would mix up distant positions.
    With `copy`, tensors that already fit are copied, too, into memory of their own.
    """
    weights = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    for tensor in chain(module.parameters(), module.buffers()):
        converted = id(tensor) in weights and tensor.is_floating_point()
        tensor.data = tensor.data.to(device, dtype if converted else tensor.dtype, copy=copy)


def load_weights(
    reader: Reader, files: ModelFiles, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Ranker:
    """Build a ranker around the weights of its files, its encoder in `dtype`, its aggregator in fp32.

    The files are mapped, not read into memory: a tensor goes from there to its device, in its type. The
    caller's random state is left as it was.
    Raises: WeightsError if weights are damaged or do not fit.
    """
    with naming(files.folder):
        with without_weights():
            ranker = build(reader, dict(files.config), seed=0)
        if files.kind == "artifact":
            fill(ranker, read_weights(files.folder), files.folder / FILE)
        else:
            fill_published(ranker.encoder.backbone, files)
        missing = [name for name, weight in ranker.named_parameters() if weight.is_meta]
        if missing:
            raise WeightsError(f"{files.folder} has no weights for {missing[0]}")
    ranker.eval()
    if dtype is not None:
        # While the weights are still the files': the version is that of the content, whatever serves it.
        _ = ranker.weights_digest
    device = device or torch.device("cpu")
    # Into memory of their own even on a CPU: a file that is overwritten later must not change what is loaded.
    place(ranker.encoder, device, dtype or torch.float32, copy=True)
    place(ranker.aggregator, device, torch.float32, copy=True)
    return ranker


def fill_published(backbone: nn.Module, files: ModelFiles, *, new_head: bool = False) -> None:
    """Copy a published checkpoint into the backbone that its config.json asks for.

    With `new_head`, what no base model has may be missing.
    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    if not isinstance(backbone, AlibiBert):
        fill_backbone(backbone, files.transformer, new_head=new_head)
        return
    path = files.transformer / FILE
    tensors = rename_published(backbone, read_weights(files.transformer), path)
    fill(backbone, tensors, path, PUBLISHED[backbone.kind].name)


def build(reader: Reader, config: dict[str, Any], seed: int) -> Ranker:
    """Build a ranker with random weights that depend on the seed alone.

    Raises: SourceError if transformers cannot build the backbone, SpecError if the family cannot.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return Ranker(reader, config)
        except RankerError:
            raise
        except Exception as error:  # a size that makes no model may fail anywhere in transformers and torch
            raise SourceError(f"config.json of {reader.spec.backbone} cannot be built: {error}") from error
