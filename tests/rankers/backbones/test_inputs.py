"""An input's neighbours in its batch do not affect it; any length runs; training reaches every parameter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from farrank_rankers.backbones.alibi_bert import build_alibi_bert


def batch(config: dict[str, Any], rows: int, length: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config["vocab_size"], (rows, length), generator=generator)
    return ids, torch.randint(2, (rows, length), generator=generator)


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert expected.abs().max() > 0.5  # otherwise the tolerance would mean nothing
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("left", [0, 5])
@pytest.mark.parametrize("right", [0, 1, 30])
def test_padding_and_companions_do_not_matter(published: Any, left: int, right: int) -> None:
    """Neighbours before, after or beside an input have no effect: only distances between its tokens count."""
    config = published.tiny()
    model = published.model(config).float()
    ids, types = batch(config, 1, 11)
    alone = model(ids, torch.ones_like(ids), types).last_hidden_state[0]
    other_ids, other_types = batch(config, 3, left + 11 + right, seed=4)
    mask = torch.ones_like(other_ids)
    other_ids[1, left : left + 11], other_types[1, left : left + 11] = ids[0], types[0]
    mask[1] = 0
    mask[1, left : left + 11] = 1
    found = model(other_ids, mask, other_types).last_hidden_state[1, left : left + 11]
    assert_near(found, alone)


def test_padding_inside_a_text_keeps_its_place_but_is_not_seen(published: Any) -> None:
    """The content of padded positions does not matter, but their number does."""
    config = published.tiny()
    model = published.model(config).float()
    ids, types = batch(config, 1, 12)
    mask = torch.ones_like(ids)
    mask[0, 4:7] = 0
    changed = ids.clone()
    changed[0, 4:7] = (ids[0, 4:7] + 1) % config["vocab_size"]
    real = mask[0].bool()
    one = model(ids, mask, types).last_hidden_state[0, real]
    two = model(changed, mask, types).last_hidden_state[0, real]
    closed = model(ids[:, real], mask[:, real], types[:, real]).last_hidden_state[0]
    assert_near(two, one)
    assert (one - closed).abs().max() > 1e-3


def test_a_change_within_the_text_is_seen_everywhere(published: Any) -> None:
    config = published.tiny()
    model = published.model(config).float()
    ids, types = batch(config, 1, 9)
    mask = torch.ones_like(ids)
    before = model(ids, mask, types).last_hidden_state[0]
    for changed_ids, changed_types in (
        (torch.cat((ids[:, :8], (ids[:, 8:] + 1) % config["vocab_size"]), 1), types),
        (ids, torch.cat((types[:, :8], 1 - types[:, 8:]), 1)),
        (ids.roll(1, 1), types),
    ):
        after = model(changed_ids, mask, changed_types).last_hidden_state[0]
        assert ((after - before).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_leaves_the_others_alone(published: Any, dtype: torch.dtype) -> None:
    config = published.tiny()
    model = published.model(config).to(dtype)
    ids, types = batch(config, 2, 13)
    mask = torch.ones_like(ids)
    mask[1] = 0
    both = model(ids, mask, types).last_hidden_state
    alone = model(ids[:1], mask[:1], types[:1]).last_hidden_state
    assert both.isfinite().all()
    torch.testing.assert_close(both[:1], alone, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.1)


def test_bool_masks_do_as_well(published: Any) -> None:
    config = published.tiny()
    model = published.model(config).float()
    ids, types = batch(config, 2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    as_bool = model(ids, mask.bool(), types).last_hidden_state
    assert torch.equal(as_bool, model(ids, mask, types).last_hidden_state)


def test_bfloat16_is_near_float32(published: Any) -> None:
    config = published.tiny(initializer_range=0.1)
    torch.manual_seed(0)
    model = build_alibi_bert(config).eval()
    ids, types = batch(config, 2, 300)
    mask = torch.ones_like(ids)
    exact = model(ids, mask, types).last_hidden_state
    rounded = model.bfloat16()(ids, mask, types).last_hidden_state
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).abs().mean() < 0.02


@pytest.mark.parametrize("length", [1, 1466])
def test_lengths(published: Any, length: int) -> None:
    config = published.tiny()
    model = published.model(config).float()
    ids, types = batch(config, 2, length)
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        both = model(ids, mask, types).last_hidden_state
        last = model(ids[1:], mask[1:], types[1:]).last_hidden_state
    assert both.shape == (2, length, config["hidden_size"])
    assert_near(both[1:], last)


def test_gradients_reach_every_parameter(published: Any) -> None:
    config = published.tiny(attention_probs_dropout_prob=0.1, initializer_range=0.5)
    torch.manual_seed(0)
    model = build_alibi_bert(config).train()
    ids, types = batch(config, 3, 10)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    hidden = model(ids, mask, types).last_hidden_state
    (hidden * torch.randn_like(hidden)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith(
            "attention.key.bias"
        ):  # adds the same to all of a query's scores, which does not change the softmax
            assert parameter.grad.abs().max() > 1e-4, name


def test_dropout_only_in_training(published: Any) -> None:
    config = published.tiny()
    model = published.model(config).float()
    ids, types = batch(config, 1, 10)
    mask = torch.ones_like(ids)

    def twice() -> tuple[Tensor, Tensor]:
        return model(ids, mask, types).last_hidden_state, model(ids, mask, types).last_hidden_state

    assert torch.equal(*twice())
    model.train()
    assert not torch.equal(*twice())


def test_initial_weights(published: Any) -> None:
    config = published.tiny(vocab_size=2000, initializer_range=0.3)
    torch.manual_seed(0)
    model = build_alibi_bert(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.std().item() == pytest.approx(0.3, rel=0.25), name
    assert model.config.hidden_size == config["hidden_size"]
