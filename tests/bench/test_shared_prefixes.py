from typing import Any

import pytest
import torch
from torch import Tensor

from farrank_bench import shared_prefixes
from farrank_bench.shared_prefixes import Size, build, encode_shared, encode_whole, measure

TINY = Size(hidden=32, layers=2, heads=4, shared_heads=2, head_width=16, intermediate=48)


def test_both_ways_give_the_same_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefixes, "VOCABULARY", 50)
    model = build(TINY, torch.float32)
    before, behind = torch.arange(7)[None], torch.arange(15).reshape(3, 5)
    with torch.inference_mode():
        whole, shared = encode_whole(model, before, behind), encode_shared(model, before, behind)
        other = encode_whole(model, before.flip(1), behind)
    assert whole.shape == (3, 32)
    torch.testing.assert_close(shared, whole, rtol=0, atol=1e-5)
    assert not torch.allclose(other, whole, atol=1e-3)
    assert all(each > 0 for each in measure(model, 7, 5, 3, 1))


def test_ways_that_differ_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefixes, "VOCABULARY", 50)

    def turned(model: Any, before: Tensor, behind: Tensor) -> Tensor:
        return encode_whole(model, before.flip(1), behind)

    monkeypatch.setattr(shared_prefixes, "encode_shared", turned)
    with pytest.raises(AssertionError, match="last vectors differ"):
        measure(build(TINY, torch.float32), 7, 5, 3, 1)
