"""The encoders compared with a computation in loops over the published tensors, with no shared code."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

SLOPES = {
    12: [2**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    3: [1 / 16, 1 / 256, 1 / 4],
}
LENGTHS = [9, 5, 1]


def layer_norm(vector: Tensor, tensors: dict[str, Tensor], name: str, eps: float) -> Tensor:
    mean = sum(vector.tolist()) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector.tolist()) / len(vector)
    normed = torch.tensor([(value - mean) / math.sqrt(variance + eps) for value in vector.tolist()])
    return normed * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def linear(vector: Tensor, tensors: dict[str, Tensor], name: str) -> Tensor:
    return tensors[f"{name}.weight"] @ vector + tensors[f"{name}.bias"]


def projections(vector: Tensor, tensors: dict[str, Tensor], name: str) -> list[Tensor]:
    """Return query, key and value of a token: from three matrices (JINA), or thirds of one (MOSAIC)."""
    if f"{name}.Wqkv.weight" in tensors:
        size = len(vector)
        whole = linear(vector, tensors, f"{name}.Wqkv")
        return [whole[:size], whole[size : 2 * size], whole[2 * size :]]
    return [linear(vector, tensors, f"{name}.{part}") for part in ("query", "key", "value")]


def gelu(value: float) -> float:
    return value * 0.5 * (1 + math.erf(value / math.sqrt(2)))


def encode(config: dict[str, Any], tensors: dict[str, Tensor], ids: list[int], types: list[int]) -> Tensor:
    """Encode one unpadded text, position by position and head by head."""
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    size, units = config["hidden_size"] // heads, config["intermediate_size"]
    words = tensors["embeddings.word_embeddings.weight"]
    segments = tensors["embeddings.token_type_embeddings.weight"]
    hidden = [
        layer_norm(words[i] + segments[t], tensors, "embeddings.LayerNorm", eps)
        for i, t in zip(ids, types, strict=True)
    ]
    for n in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{n}"
        qkv = [projections(vector, tensors, f"{layer}.attention.self") for vector in hidden]
        attended = []
        for i, (query, _, _) in enumerate(qkv):
            mixed = torch.zeros(config["hidden_size"], dtype=torch.float64)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                weights = [
                    math.exp(
                        float(query[part] @ key[part]) / math.sqrt(size) - SLOPES[heads][head] * abs(i - j)
                    )
                    for j, (_, key, _) in enumerate(qkv)
                ]
                for weight, (_, _, value) in zip(weights, qkv, strict=True):
                    mixed[part] += weight / sum(weights) * value[part]
            output = linear(mixed, tensors, f"{layer}.attention.output.dense")
            attended.append(
                layer_norm(output + hidden[i], tensors, f"{layer}.attention.output.LayerNorm", eps)
            )
        hidden = []
        for vector in attended:
            both = tensors[f"{layer}.mlp.gated_layers.weight"] @ vector
            gated = [gelu(float(both[u])) * float(both[units + u]) for u in range(units)]
            output = linear(torch.tensor(gated), tensors, f"{layer}.mlp.wo")
            hidden.append(layer_norm(output + vector, tensors, f"{layer}.mlp.layernorm", eps))
    return torch.stack(hidden)


@pytest.fixture(autouse=True)
def _double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("heads", SLOPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hidden_states(published: Any, heads: int, dtype: torch.dtype) -> None:
    config = published.tiny(num_attention_heads=heads)
    tensors = {name.removeprefix("bert."): tensor for name, tensor in published.tensors(config).items()}
    model = published.model(config).to(dtype)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(config["vocab_size"], (len(LENGTHS), max(LENGTHS)), generator=generator)
    types = torch.randint(2, ids.shape, generator=generator)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    with torch.inference_mode():
        hidden = model(ids, mask.long(), types).last_hidden_state
    assert hidden.shape == (*ids.shape, config["hidden_size"])
    assert hidden.dtype == dtype
    for row, length in enumerate(LENGTHS):
        expected = encode(config, tensors, ids[row, :length].tolist(), types[row, :length].tolist())
        tolerance = 1e-6 if dtype == torch.float64 else 1e-5  # slopes are float32 in either
        assert (hidden[row, :length].double() - expected).abs().max() < tolerance * expected.abs().max()
