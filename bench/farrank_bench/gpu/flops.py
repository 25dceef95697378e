"""The floating-point operations of an input, from the model's sizes and the input's length.

The count is independent of the implementation. Each token and weight of a linear layer needs a multiplication
and an addition. Each pair of tokens that attend to each other needs both for every value of their vectors,
once for the attention score and once for the weighted sum. Embeddings, norms, activations, softmax, biases
and heads do not count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farrank_rankers.backbone_facts import own_backbone

# The feed-forward part has two matrices in plain backbones, and three in gated ones.
PLAIN = frozenset({"bert", "camembert", "electra", "roberta", "xlm-roberta"})
GATED = frozenset({"jina", "mosaic"})
COUNTED = PLAIN | GATED | {"longformer"}
MULTIPLY_ADD = 2


def encoder_flops(config: Mapping[str, Any], lengths: Sequence[int], global_tokens: int = 0) -> int:
    """Count the operations for inputs of these lengths, without padding.

    For Longformer, `global_tokens` is the number of global tokens at the beginning of each input.
    Raises: ValueError for an architecture whose operations this module does not count.
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
        # Global tokens have their own query projection; all tokens have key and value projections for them.
        weights += layers * (2 * tokens + globals_) * width**2
        pairs = sum(
            seen_pairs(length, window // 2, global_tokens) for window in windows for length in lengths
        )
    return MULTIPLY_ADD * (weights + 2 * pairs * width)


def seen_pairs(length: int, reach: int, global_tokens: int) -> int:
    """Count pairs of tokens that attend to each other: at most `reach` apart, or with a global token.

    The first `global_tokens` are global.
    """
    places = np.arange(length)
    first = np.maximum(places - reach, 0)
    near = np.minimum(places + reach, length - 1) - first + 1  # (L,)
    # Add the global tokens before the window.
    seen = near + np.minimum(first, global_tokens)  # (L,)
    seen[:global_tokens] = length
    return int(seen.sum())
