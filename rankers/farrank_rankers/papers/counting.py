"""How many parameters a model has, counted without holding one of them."""

import torch
from torch import nn

from farrank_rankers.families.parade_transformer import VectorTransformer
from farrank_rankers.families.registry import AGGREGATORS, ENCODERS
from farrank_rankers.papers.models import PaperModel


def on_meta(model: PaperModel) -> nn.ModuleDict:
    """Build encoder and aggregator at full size on torch's meta device: shapes without memory."""
    family = model.spec.family
    with torch.device("meta"):
        return nn.ModuleDict(
            {
                "encoder": ENCODERS[family](model.spec, model.config),
                "aggregator": AGGREGATORS[family](model.spec, model.config),
            }
        )


# Words of BERT, ELECTRA and MiniLM, whose vectors the published aggregator transformers hold and never read.
VOCABULARY = 30522


def count_parameters(module: nn.Module) -> int:
    """Count parameters as Table 6 does: each shared one once, and word embeddings of aggregators, too.

    The papers' transformers of PARADE have such embeddings, though vectors take their place; ours have none.
    """
    own = sum(parameter.numel() for parameter in module.parameters())
    readers = (part.bert for part in module.modules() if isinstance(part, VectorTransformer))
    return own + VOCABULARY * sum(bert.config.hidden_size for bert in readers)
