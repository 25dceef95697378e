"""MosaicBERT: BERT with symmetric ALiBi and gated linear units, here in the variant for 2,048 tokens.

Where the facts come from:
- Portes et al., "MosaicBERT", NeurIPS 2023: ALiBi instead of position embeddings, GeGLU, unpadding.
- mosaicml/examples, bert/src/bert_layers.py, the code of the checkpoint: one matrix Wqkv whose rows are all
  heads' queries, then keys, then values; in the feed-forward the gate first, the GELU exact, and the norm
  last; the slopes for 12 heads. It takes padding out of the batch where this module masks it, with the same
  result at every real position.
"""

from torch import Tensor, nn

from farrank_rankers.backbones.config import AlibiBertConfig
from farrank_rankers.backbones.layers import AlibiBert, Attention


class MosaicAttention(Attention):
    """Attention with one matrix for queries, keys and values together."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (P, L, H) -> (P, L, H) each."""
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)  # (P, L, H) each
        return query, key, value


class MosaicBert(AlibiBert):
    """MosaicBERT's encoder. Shapes: (P, L) each -> last_hidden_state (P, L, H)."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config, MosaicAttention)
