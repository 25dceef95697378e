"""Heads trained on the stored output of a frozen encoder: minutes instead of hours, so seeds are affordable.

A head is all of a ranker but its backbone. Every epoch composes new documents, with the relevant passage at a
place drawn as in the collection, so few passages make many documents.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from farrank_experiments.pairs import PairFeatures, arranged
from farrank_experiments.questions import Arrangement, AskedQuestion, inserted
from farrank_experiments.settings import HeadSettings
from farrank_rankers.aggregate import Aggregator
from farrank_rankers.features import Features
from farrank_rankers.ranker import Ranker
from farrank_training.data_sets.window_documents import drawn_place
from farrank_training.losses import hinge
from farrank_training.trained_weights import hold_limits

# B questions, the epoch's number and its random generator -> scores of each question's documents, the
# relevant one first, (B, 1 + n).
GroupScores = Callable[[Sequence[AskedQuestion], int, Random], Tensor]


def train_head(
    ranker: Ranker,
    scores: GroupScores,
    questions: Sequence[AskedQuestion],
    settings: HeadSettings,
    seed: int,
    progress: Callable[[str], None] = lambda said: None,
) -> float:
    """Train all of a ranker but its backbone, in place; return the mean loss of the last epoch.

    All questions have the same number of documents. All random draws depend on the seed.
    """
    steps = settings.epochs * -(-len(questions) // settings.batch_size)
    rising = max(1, round(settings.warmup * steps))
    optimizer = AdamW(
        [weight for weight in ranker.aggregator.parameters() if weight.requires_grad],
        lr=settings.learning_rate,
        weight_decay=1e-7,
    )
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / rising))
    mean_loss = 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ranker.aggregator.train()
        for epoch in range(settings.epochs):
            rng = Random(f"{seed}/{epoch}")
            order = rng.sample(list(questions), len(questions))
            losses = []
            for start in range(0, len(order), settings.batch_size):
                batch = order[start : start + settings.batch_size]
                loss = hinge(scores(batch, epoch, rng), settings.margin).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                hold_limits(ranker)
                schedule.step()
                losses.append(float(loss.detach()))
            mean_loss = sum(losses) / len(losses)
            progress(f"epoch {epoch + 1} of {settings.epochs}, loss {mean_loss:.3f}")
    ranker.aggregator.eval()
    return mean_loss


def on_vectors(aggregator: Aggregator[Any], features: PairFeatures, kind: str) -> GroupScores:
    """Let an aggregator score newly drawn documents of a kind from the vectors of their passages."""

    def scores(questions: Sequence[AskedQuestion], epoch: int, rng: Random) -> Tensor:
        vectors: list[Tensor] = []
        documents: list[Arrangement] = []
        before = 0
        for question in questions:
            read = features(question).vectors  # (P, H)
            vectors.append(read)
            for key, document in enumerate(question.conditions[kind]):
                documents.append(tuple(before + each for each in redrawn(document, key, kind, rng)))
            before += len(read)
        found: Tensor = aggregator(*arranged(Features(torch.cat(vectors)), documents))  # (D,)
        return found.view(len(questions), -1)

    return scores


def redrawn(document: Arrangement, key: int, kind: str, rng: Random) -> Arrangement:
    """Draw a new order of a document's passages, with the relevant one's place drawn as in the kind."""
    others = [each for each in document if each != key]
    rng.shuffle(others)
    return inserted(key, others, drawn_place(kind, len(document), rng))
