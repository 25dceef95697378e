"""The shapes that TensorRT's engines are built for, as a manifest tells them."""

from collections.abc import Mapping, Sequence

from farrank_rankers.exports.manifest import ShapeRange
from farrank_runtimes.devices import CUDA_BATCH_TOKENS
from farrank_runtimes.tensorrt import length_groups

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
