"""The choices of an export that need optimum, and whether it is installed; imports neither it nor torch."""

from importlib.util import find_spec
from typing import Literal

from farrank_rankers.errors import ExportError

AskedExporter = Literal["auto", "torch", "optimum"]
Level = Literal["O1", "O2", "O3", "O4"]
PlainPrecision = Literal["fp32", "int8"]


def check_installed(what: str) -> None:
    """Check that optimum's exporters are installed. Raises: ExportError saying that `what` needs them."""
    try:
        found = find_spec("optimum.exporters.onnx")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ExportError(
            f"{what} needs optimum, which is not installed: pip install -c constraints-transformers-4.txt "
            "'farrank[optimum]' in a separate environment, because it pins transformers to 4.57"
        )


def optimum_flag(precision: str, level: Level | None) -> str | None:
    """Name the flags with which a plain graph needs optimum's operators; None if it does not."""
    if level is not None:
        return f"--optimize {level}"
    return "--layout optimum --precision int8" if precision == "int8" else None
