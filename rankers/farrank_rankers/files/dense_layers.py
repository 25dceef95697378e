"""Dense layers and norms in sentence-transformers' folders of modules."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError
from farrank_rankers.family import Activation, HeadLayer
from farrank_rankers.json_values import read_json, read_value, short

# By the classes of torch that a Dense module names.
_ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


def read_dense(path: Path, width: int, read: str, written: str | None = None) -> HeadLayer:
    """Read a Dense layer on the vectors of `width` that sentence-transformers names `read`.

    `written` is the name of its output, if that differs.

    Raises: SourceError naming file, key and value.
    """
    values = read_json(path)
    given = values.get("module_input_name", read)
    expected = {
        "in_features": width,
        "module_input_name": read,
        "module_output_name": written or read,
    }
    found = {"module_output_name": given, "module_input_name": given} | {
        key: value for key, value in values.items() if value is not None
    }
    for key, value in expected.items():
        if found.get(key) != value:
            raise SourceError(f"{path}: {key} is {short(found.get(key))}; only {value!r} is served there")
    name = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    module, _, function = str(name).rpartition(".")
    if module.split(".")[0] != "torch" or function not in _ACTIVATIONS:
        raise SourceError(
            f"{path}: activation_function is {short(name)}; it must be torch's {', '.join(_ACTIVATIONS)}"
        )
    bias: bool = read_value(bool, values.get("bias", True), f"{path}: bias", SourceError)
    width = read_number(values, "out_features", path)
    residual: bool = read_value(bool, values.get("use_residual", False), f"{path}: use_residual", SourceError)
    return HeadLayer("dense", width, bias, _ACTIVATIONS[function], residual)


def read_norm(path: Path, width: int) -> HeadLayer:
    """Read a LayerNorm after a layer of `width`. Raises: SourceError naming file, key and value."""
    values = read_json(path)
    if values.get("dimension") != width:
        raise SourceError(f"{path}: dimension is {short(values.get('dimension'))}; only {width} fits there")
    return HeadLayer("norm", width)


def hidden_size(config: Mapping[str, Any], folder: Path) -> int:
    """Read the width of a transformer's vectors in its config.json; DistilBERT calls it dim.

    Raises: SourceError naming file, key and value.
    """
    key = "dim" if config.get("model_type") == "distilbert" else "hidden_size"
    return read_number(config, key, folder / "config.json")


def read_number(values: Mapping[str, Any], key: str, path: Path) -> int:
    """Read a number of at least 1. Raises: SourceError naming file, key and value."""
    number: int = read_value(int, values.get(key), f"{path}: {key}", SourceError)
    if number < 1:
        raise SourceError(f"{path}: {key} is {number}; it must be at least 1")
    return number
