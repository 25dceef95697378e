"""Which runtimes serve an export, and so measure it, and the shapes that TensorRT's engines are built for."""

from collections.abc import Mapping, Sequence

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Exported
from farrank_rankers.exports.manifest import ExportFormat, ExportPrecision, ShapeRange
from farrank_runtimes.devices import CUDA_BATCH_TOKENS
from farrank_runtimes.runtime import DeviceAbsent, Placement, PrecisionAbsent, Runtime, RuntimeAbsent
from farrank_runtimes.runtime_table import RUNTIMES, check_here, open_export, readers_of
from farrank_runtimes.tensorrt_runtime import length_groups

Profiles = Mapping[str, tuple[Mapping[str, ShapeRange], ...]]


def encoder_profiles(inputs: Sequence[str], longest_input: int) -> Profiles:
    """Give one profile for each group of lengths; the aggregator, which CUDA runs, has none.

    A server with another token budget than a GPU's usual one builds engines of its own.
    """
    groups = length_groups(longest_input, max(CUDA_BATCH_TOKENS, longest_input))
    ranges = [
        ShapeRange((1, group.shortest), (group.usual_rows, group.longest), (group.rows, group.longest))
        for group in groups
    ]
    return {"encoder": tuple(dict.fromkeys(inputs, shapes) for shapes in ranges)}


def runtimes_for(form: ExportFormat, precision: ExportPrecision) -> tuple[str, ...]:
    """Name the runtimes that will serve an export. All must be here: each is measured, no other serves it.

    Raises: ExportError with the command that installs what is absent.
    """
    names = readers_of(form, precision)
    for name in names:
        try:
            check_here(name, precision, _placement(name))
        except (RuntimeAbsent, PrecisionAbsent, DeviceAbsent) as error:
            raise ExportError(
                f"{form} in {precision} is measured with {name}, which is not here: {error}"
            ) from error
    return names


def open_runtime(name: str, exported: Exported) -> Runtime:
    """Open a runtime on an export, in its place or not there yet.

    Raises: ExportError if it cannot be opened here.
    """
    try:
        return open_export(name, exported, _placement(name))
    except (RuntimeAbsent, PrecisionAbsent, DeviceAbsent) as error:
        raise ExportError(f"the export cannot be measured with {name}: {error}") from error


def _placement(name: str) -> Placement:
    """Take the CPU, where the ranker itself is, unless the runtime needs a GPU."""
    return Placement(device="cpu") if "cpu" in RUNTIMES[name].ranks else Placement()
