"""One graph in a session of ONNX Runtime: tensors by name in, tensors out, on the session's device."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from farrank_runtimes.interface import DeviceLost, OutOfMemory

if TYPE_CHECKING:
    import onnxruntime

_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.bool: np.bool_}

# What the messages of ONNX Runtime's arenas, of CUDA and its libraries, and of TensorRT hold, in lower case.
_OUT_OF_MEMORY = ("failed to allocate memory", "out of memory", "alloc_failed", "bad_alloc", "outofmemory")
_DEVICE_LOST = ("cuda failure", "cuda error", "cudnn failure", "cublas failure")


class OnnxGraph:
    """A loaded graph. What an exporter found unused is no input of the graph, and is left out here, too."""

    def __init__(self, session: "onnxruntime.InferenceSession", device: torch.device) -> None:
        self._session = session
        self._device = device
        self._inputs = [item.name for item in session.get_inputs()]
        self._outputs = [item.name for item in session.get_outputs()]

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the graph; done, not merely enqueued, when it returns.

        Inputs may lie on the host or on the device. Outputs lie on the device, in the graph's order; the
        session never writes to them again.
        Raises: OutOfMemory, DeviceLost.
        """
        # Held until the run is over: the session sees addresses alone.
        contiguous = {name: inputs[name].contiguous() for name in self._inputs}
        with _device_failures():
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the session's stream does not wait for torch's
            binding = self._session.io_binding()
            for name, tensor in contiguous.items():
                place, index = tensor.device.type, tensor.device.index or 0
                shape = list(tensor.shape)
                binding.bind_input(name, place, index, _NUMPY[tensor.dtype], shape, tensor.data_ptr())
            for name in self._outputs:
                binding.bind_output(name, self._device.type, self._device.index or 0)
            self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()
        return [from_dlpack(value) for value in binding.get_outputs_as_ortvaluevector()]


@contextmanager
def _device_failures() -> Iterator[None]:
    """Translate what ONNX Runtime raises when the device, not the model, is at fault."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory("the host's memory is exhausted") from error
    # Its own exceptions have no base but this one, and their types say less than their messages.
    except Exception as error:
        message = str(error).strip()
        if any(sign in message.lower() for sign in _OUT_OF_MEMORY):
            raise OutOfMemory(message) from error
        if any(sign in message.lower() for sign in _DEVICE_LOST):
            raise DeviceLost(message) from error
        raise
