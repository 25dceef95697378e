"""Where a ranker's weights are, and in which float type: from their files to a device, no copy between."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules whose parameters have shapes and no memory, until `files.weights` puts tensors there.

    Buffers are made as ever: what a module computes for itself, such as rotary frequencies, is in no file.
    """
    building = threading.get_ident()

    def emptied(module: nn.Module, name: str, parameter: Tensor | None) -> Tensor | None:
        # The hook is the process's; modules that another thread builds meanwhile are none of ours. A tied
        # parameter comes here a second time and must stay itself.
        if parameter is None or parameter.is_meta or threading.get_ident() != building:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    # Its annotation says that hooks return nothing; what they do return is registered.
    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def place(module: nn.Module, device: torch.device, dtype: torch.dtype, *, copy: bool = False) -> None:
    """Bring weights to a device in a float type, one tensor after the other, so that few are there twice.

    Buffers that no file holds change their device alone: rotary frequencies in bf16 would turn distant tokens
    to where others are. With `copy`, what is already as wished is copied too, into memory of its own.
    """
    weights = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    for tensor in chain(module.parameters(), module.buffers()):
        converted = id(tensor) in weights and tensor.is_floating_point()
        tensor.data = tensor.data.to(device, dtype if converted else tensor.dtype, copy=copy)
