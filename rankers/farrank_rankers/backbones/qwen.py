"""Qwen2 and Qwen3: Llamas whose queries, keys and values have biases (2), or normed queries and keys (3)."""

from torch import Tensor

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.backbones.llama import PackedLlama, PackedLlamaLayer, last_token, without_cache


class PackedQwen3Layer(PackedLlamaLayer):
    """A layer of Qwen3, which norms queries and keys before their rotation. Shapes: (T, H) -> (T, H)."""

    def normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes: (T, A, D), (T, B, D)."""
        own = self.layer.self_attn
        return own.q_norm(query), own.k_norm(key)


class PackedQwen3(PackedLlama):
    """A transformers Qwen3. Shapes: T tokens -> last_hidden_state (T, H)."""

    layer_class = PackedQwen3Layer


QWEN2 = Forms(call=without_cache, packed=PackedLlama, head=last_token)
QWEN3 = Forms(call=without_cache, packed=PackedQwen3, head=last_token)
