import pytest

from farrank_exporters.export import encoder_profiles
from farrank_runtimes.devices import CUDA_BATCH_TOKENS


@pytest.mark.parametrize("longest", [16, 185, 512, 1466])
def test_profiles_cover_every_length_once(longest: int) -> None:
    profiles = encoder_profiles(("input_ids", "roles"), longest)["encoder"]
    covered: list[int] = []
    for profile in profiles:
        assert list(profile) == ["input_ids", "roles"]
        assert profile["input_ids"] == profile["roles"]
        shapes = profile["input_ids"]
        covered += range(shapes.minimum[1], shapes.maximum[1] + 1)
        for least, usual, most in zip(shapes.minimum, shapes.optimum, shapes.maximum, strict=True):
            assert least <= usual <= most
        assert shapes.optimum[0] * shapes.optimum[1] <= CUDA_BATCH_TOKENS
    assert covered == list(range(1, longest + 1))
