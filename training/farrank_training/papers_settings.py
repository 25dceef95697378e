"""The settings of the papers of a ranker's family, where they are not the defaults of `TrainingConfig`."""

from typing import Any

from farrank_rankers.spec import RankerSpec
from farrank_training.configuration import Loss, TrainingConfig

# Vectors of a query in the papers' models, which add up one product for each of them.
_QUERY_VECTORS = 32
_RATES_3E_6 = {"backbone_learning_rate": 3e-6, "learning_rate": 3e-6}
_RATES_1E_5 = {"backbone_learning_rate": 1e-5, "learning_rate": 1e-5}
# 20,000 of 400,000 steps.
_COLBERT_V2_WARMUP = 0.05


def papers_settings(spec: RankerSpec, loss: Loss | None = None) -> TrainingConfig:
    """Give the settings to start from for a ranker and a loss; without a loss, the one of its papers.

    Steps of multi-vector rankers have 32 groups, in one batch if these compete. Their scores are sums over
    the query's vectors, at temperature 1; a mean is multiplied to about the same size.

    Sources: Khattab & Zaharia, "ColBERT", SIGIR 2020, and PyLate's example of contrastive training (rate
    3e-6, 32 groups, temperature 1); Santhanam et al., "ColBERTv2", NAACL 2022, and answerai-colbert-small's
    published settings (KL, rate 1e-5, 32 groups of 32 documents).
    """
    if spec.maxsim is None:
        return TrainingConfig() if loss is None else TrainingConfig(loss=loss)
    loss = loss or "contrastive"
    changes: dict[str, Any] = {
        "loss": loss,
        "warmup": _COLBERT_V2_WARMUP,
        "batch_size": 1,
        "accumulation": 32,
    }
    changes |= _RATES_1E_5 | {"negatives": 31} if loss == "kl" else _RATES_3E_6
    if loss == "contrastive":
        changes |= {"batch_size": 32, "accumulation": 1}
    if spec.maxsim.mean:
        changes["score_scale"] = float(_QUERY_VECTORS)
    return TrainingConfig(**changes)
