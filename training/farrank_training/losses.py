"""Losses over groups: the first document of each group must score above the others.

Every loss takes scores (B, 1 + n), the relevant document's first, and gives one value a group, (B,). A step
minimises the mean over its groups, however they are divided among batches and processes. AdamW is invariant
to a constant factor, so the papers' sum over a step's pairs trains the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from farrank_training.configuration import Loss
from farrank_training.errors import TrainingError

# Scores of a batch of groups and perhaps a teacher's, (B, 1 + n) each -> (B,).
GroupLoss = Callable[[Tensor, Tensor | None], Tensor]


def hinge(scores: Tensor, margin: float = 1.0) -> Tensor:
    """Require that the relevant document lead each other one by a margin: Σ_i max(0, margin − s₊ + s_i).

    Shapes: (B, 1 + n) -> (B,).
    Source: Boytsov et al., arXiv 2207.01262 (margin 1, summed); Joachims, KDD 2002.
    """
    return (margin - scores[:, :1] + scores[:, 1:]).relu().sum(dim=1)


def ranknet(scores: Tensor) -> Tensor:
    """Model each pair's order as a coin toss with odds e^(s₊ − s_i): Σ_i log(1 + e^(s_i − s₊)).

    Shapes: (B, 1 + n) -> (B,).
    Source: Burges et al., "Learning to Rank using Gradient Descent", ICML 2005.
    """
    return functional.softplus(scores[:, 1:] - scores[:, :1]).sum(dim=1)


def cross_entropy(scores: Tensor) -> Tensor:
    """Choose the relevant document among all of its group: −log softmax(s)₊.

    Shapes: (B, 1 + n) -> (B,).
    Source: Gao et al., "Rethink Training of BERT Rerankers" (localized contrastive estimation), ECIR 2021.
    """
    return -torch.log_softmax(scores, dim=1)[:, 0]


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Lead the others by as much as a teacher's scores do: the mean of ((s₊ − s_i) − (t₊ − t_i))².

    Shapes: (B, 1 + n) each -> (B,).
    Source: Hofstätter et al., "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
    Distillation", arXiv 2010.02666.
    """
    lead, wanted = scores[:, :1] - scores[:, 1:], teacher[:, :1] - teacher[:, 1:]  # (B, n)
    return (lead - wanted).square().mean(dim=1)


def group_loss(name: Loss, margin: float = 1.0) -> GroupLoss:
    """Give the loss of a name; `margin` is the hinge's.

    The loss raises: TrainingError if it learns from a teacher and there are no teacher's scores.
    """

    def from_teacher(scores: Tensor, teacher: Tensor | None) -> Tensor:
        if teacher is None:
            raise TrainingError(
                "loss is margin-mse, which needs a teacher's scores: pos_scores and neg_scores in JSON lines"
            )
        return margin_mse(scores, teacher)

    losses: dict[Loss, GroupLoss] = {
        "hinge": lambda scores, _: hinge(scores, margin),
        "ranknet": lambda scores, _: ranknet(scores),
        "cross-entropy": lambda scores, _: cross_entropy(scores),
        "margin-mse": from_teacher,
    }
    return losses[name]
