"""JinaBERT v2: BERT with symmetric ALiBi and a GEGLU feed-forward, trained for texts of up to 8,192 tokens.

Where the facts come from:
- Günther et al., "Jina Embeddings 2", arXiv 2310.19923: symmetric ALiBi, GLU variants, BERT's segments.
- jinaai/jina-bert-implementation on the hub, to which the checkpoint's auto_map points, as others rewrote it:
  huggingface/candle's jina_bert.rs and vllm-project/vllm's jina_bert.py agree that norms come after, that the
  gate is the first half of the feed-forward's matrix, that its GELU is the exact one, and that its norm
  closes the layer. The slopes for 12 heads are quoted from it in xorbitsai/inference issue 1842.
"""

from torch import Tensor, nn

from farrank_rankers.backbones.config import AlibiBertConfig
from farrank_rankers.backbones.layers import AlibiBert, Attention


class JinaAttention(Attention):
    """Attention with one matrix each for queries, keys and values, as in BERT."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config)
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (P, L, H) -> (P, L, H) each."""
        return self.query(hidden), self.key(hidden), self.value(hidden)


class JinaBert(AlibiBert):
    """JinaBERT's encoder. Shapes: (P, L) each -> last_hidden_state (P, L, H)."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config, JinaAttention)
