"""Losses over groups: the first document of each group must score above the others.

Every loss takes scores (B, 1 + n), the relevant document's first, and gives one value a group, (B,). A step
minimises the mean over its groups, however they are divided among batches and processes. AdamW is invariant
to a constant factor, so the papers' sum over a step's pairs trains the same.

The contrastive loss is the cross entropy of longer rows: `own_documents_first` puts the documents of the
batch's other groups behind a group's own.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from farrank_rankers.spec import RankerSpec
from farrank_training.configuration import KlScores, Loss, TrainingConfig
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


def kl_divergence(scores: Tensor, teacher: Tensor, of: KlScores = "raw") -> Tensor:
    """Order all documents as a teacher does: Σ_i p_i (log p_i − log q_i).

    p is the softmax of the teacher's scores, q that of the ranker's. "min-max" first moves and scales both
    lists of scores to 0 … 1: a ranker then learns from a teacher whose scores have another range.
    Shapes: (B, 1 + n) each -> (B,).
    Source: Santhanam et al., "ColBERTv2", NAACL 2022; min-max: Clavié, "JaColBERTv2.5", arXiv 2407.20750, and
    PyLate's Distillation.
    """
    if of == "min-max":
        scores, teacher = from_0_to_1(scores), from_0_to_1(teacher)
    wanted = torch.log_softmax(teacher, dim=1)  # (B, 1 + n)
    return (wanted.exp() * (wanted - torch.log_softmax(scores, dim=1))).sum(dim=1)


def from_0_to_1(scores: Tensor) -> Tensor:
    """Move and scale each row's scores to 0 … 1; equal scores become 0. Shapes: (B, 1 + n) -> the same."""
    least, most = scores.aminmax(dim=1, keepdim=True)  # (B, 1) each
    return (scores - least) / (most - least + 1e-8)


def own_documents_first(scores: Tensor, competing: Tensor) -> Tensor:
    """Arrange the scores of all queries and documents of a batch for the losses over groups.

    A row holds a query's own documents, then those of the other groups; −inf is the score of a document that
    does not compete for this query. Groups are of one size.
    Shapes: scores (B, D), competing (B, D) bool -> (B, D).
    """
    groups, documents = scores.shape
    starts = torch.arange(groups, device=scores.device) * (documents // groups)  # (B,)
    order = (torch.arange(documents, device=scores.device) + starts[:, None]) % documents  # (B, D)
    return scores.masked_fill(~competing, -torch.inf).gather(1, order)


def group_loss(name: Loss, margin: float = 1.0, kl_scores: KlScores = "min-max") -> GroupLoss:
    """Give the loss of a name; `margin` is the hinge's, `kl_scores` those that kl compares.

    The contrastive loss takes the rows of `own_documents_first`.
    The loss raises: TrainingError if it learns from a teacher and there are no teacher's scores.
    """

    def taught(scores: Tensor, teacher: Tensor | None) -> Tensor:
        if teacher is None:
            raise TrainingError(
                f"loss is {name}, which needs a teacher's scores: pos_scores and neg_scores in JSON lines, "
                "as farrank train teach writes them"
            )
        if name == "kl":
            return kl_divergence(scores, teacher, kl_scores)
        return margin_mse(scores, teacher)

    losses: dict[Loss, GroupLoss] = {
        "hinge": lambda scores, _: hinge(scores, margin),
        "ranknet": lambda scores, _: ranknet(scores),
        "cross-entropy": lambda scores, _: cross_entropy(scores),
        "contrastive": lambda scores, _: cross_entropy(scores),
        "margin-mse": taught,
        "kl": taught,
    }
    return losses[name]


def check_loss(spec: RankerSpec, config: TrainingConfig) -> None:
    """Check that a ranker and the sizes of batches and groups fit the loss.

    Raises: TrainingError naming the setting, its value and the limit.
    """
    if config.loss == "contrastive":
        if spec.plan != "dual":
            raise TrainingError(
                f"loss is contrastive; it must be another one: {spec.family} reads a document together with "
                "its query, so it has no scores of other queries' documents. cross-entropy compares the "
                "documents of one query"
            )
        if config.batch_size < 2:
            raise TrainingError(
                f"batch_size is {config.batch_size}; it must be at least 2: "
                "contrastive compares a query with the documents of the batch's other queries"
            )
    if config.loss == "kl" and config.kl_scores == "min-max" and config.negatives < 2:
        raise TrainingError(
            f"negatives is {config.negatives}; it must be at least 2 for kl with min-max scores: "
            "those of two documents are always 0 and 1"
        )
