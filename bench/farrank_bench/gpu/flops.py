"""How many floating-point operations an input takes, from the model's sizes and the input's length.

What the result needs, whoever computes it: a multiplication and an addition for each token and weight of a
linear layer, and as many for each pair of tokens that see each other and value of their vectors, once for the
score and once for the mix. Left out are embeddings, norms, activations, softmax, biases and heads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farrank_rankers.backbone_facts import own_backbone

# Two matrices in the feed-forward part; gated ones have three.
PLAIN = frozenset({"bert", "camembert", "electra", "roberta", "xlm-roberta"})
GATED = frozenset({"jina", "mosaic"})
COUNTED = PLAIN | GATED | {"longformer"}
MULTIPLY_ADD = 2


def encoder_flops(config: Mapping[str, Any], lengths: Sequence[int], global_tokens: int = 0) -> int:
    """Count the operations for inputs of these lengths, padding not among them.

    Longformer needs to know how many tokens at each input's beginning are global.
    Raises: ValueError for an architecture whose layers are not known here.
    """
    kind = own_backbone(config) or str(config.get("model_type"))
    width, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    if kind not in COUNTED:
        raise ValueError(f"model_type is {kind!r}; operations are counted for {', '.join(sorted(COUNTED))}")
    matrices = 3 if kind in GATED else 2
    of_token = 4 * width**2 + matrices * width * int(config["intermediate_size"])
    tokens = sum(lengths)
    weights = layers * tokens * of_token
    if kind != "longformer":
        pairs = layers * sum(length**2 for length in lengths)
    else:
        window = config["attention_window"]
        windows = [window] * layers if isinstance(window, int) else window
        globals_ = sum(min(global_tokens, length) for length in lengths)
        # Global tokens ask by a layer of their own, and are answered by two more.
        weights += layers * (2 * tokens + globals_) * width**2
        pairs = sum(
            seen_pairs(length, window // 2, global_tokens) for window in windows for length in lengths
        )
    return MULTIPLY_ADD * (weights + 2 * pairs * width)


def seen_pairs(length: int, reach: int, global_tokens: int) -> int:
    """Count pairs of which one sees the other: at most `reach` apart, or with a global token in it.

    The first `global_tokens` are global.
    """
    places = np.arange(length)
    first = np.maximum(places - reach, 0)
    near = np.minimum(places + reach, length - 1) - first + 1  # (L,)
    # Of the global tokens, those that stand before the window.
    seen = near + np.minimum(first, global_tokens)  # (L,)
    seen[:global_tokens] = length
    return int(seen.sum())
