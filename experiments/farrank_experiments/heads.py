"""Heads trained on the stored output of a frozen encoder: minutes instead of hours, so seeds are affordable.

A head is all of a ranker but its backbone. Every epoch composes new documents, with the relevant passage at a
place drawn as in the collection, so few passages make many documents. A head learns until it no longer
improves on questions that are held out, with each of a few learning rates, and the best one is kept.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from farrank_experiments.asking import ask, by_aggregators
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
# The length of a document in passages, and a random generator -> a place for the relevant one, from 1.
Place = Callable[[int, Random], int]


@dataclass(frozen=True, slots=True)
class Learned:
    """How a head learned: its rate and epochs, the mean loss of the last one, and the held-out MRR after it.

    With `converged` later epochs brought no improvement. `mrr` is None if no questions were held out.
    """

    learning_rate: float
    epochs: int
    loss: float
    mrr: float | None
    converged: bool = False

    def __str__(self) -> str:
        told = "" if self.mrr is None else f", held-out MRR {self.mrr:.3f}"
        return f"rate {self.learning_rate:g}, {self.epochs} epochs: loss {self.loss:.3f}{told}"


def train_head(
    ranker: Ranker,
    scores: GroupScores,
    questions: Sequence[AskedQuestion],
    settings: HeadSettings,
    seed: int,
    held_out: Callable[[], float] | None = None,
    progress: Callable[[str], None] = lambda said: None,
) -> Learned:
    """Train all of a ranker but its backbone, in place.

    `held_out` measures the ranker on other questions. Each learning rate starts from the same weights, and
    ends `patience` epochs after the best one; the best weights of all rates are kept. Without `held_out`, the
    head learns for all epochs with the first rate. All questions have the same number of documents. All
    random draws depend on the seed.
    """
    start, found = deepcopy(ranker.aggregator.state_dict()), list[tuple[Learned, dict[str, Tensor]]]()
    for rate in settings.learning_rates[: None if held_out else 1]:
        ranker.aggregator.load_state_dict(start)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found.append(_trained_at(rate, ranker, scores, questions, settings, seed, held_out, progress))
    learned, weights = max(found, key=lambda each: each[0].mrr or 0.0)
    ranker.aggregator.load_state_dict(weights)
    ranker.aggregator.eval()
    return learned


def _trained_at(
    rate: float,
    ranker: Ranker,
    scores: GroupScores,
    questions: Sequence[AskedQuestion],
    settings: HeadSettings,
    seed: int,
    held_out: Callable[[], float] | None,
    progress: Callable[[str], None],
) -> tuple[Learned, dict[str, Tensor]]:
    """Train with one learning rate. Returns how, and the weights of the best epoch."""
    rising = max(1, round(settings.warmup_epochs * -(-len(questions) // settings.batch_size)))
    optimizer = AdamW(
        [weight for weight in ranker.aggregator.parameters() if weight.requires_grad],
        lr=rate,
        weight_decay=1e-7,
        fused=True,  # a loop over the weights takes a quarter of the time
    )
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / rising))
    best, weights = Learned(rate, 0, 0.0, None), dict[str, Tensor]()
    for epoch in range(settings.most_epochs):
        ranker.aggregator.train()
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
        ranker.aggregator.eval()
        mrr = held_out() if held_out else None
        now = Learned(rate, epoch + 1, fmean(losses), mrr)
        progress(str(now))
        if mrr is None or best.mrr is None or mrr > best.mrr:
            best = now
            weights = deepcopy(ranker.aggregator.state_dict())
        elif epoch + 1 - best.epochs >= settings.patience:
            return replace(best, converged=True), weights
    return best, weights


def held_out_mrr(
    aggregator: Aggregator[Any],
    features: PairFeatures,
    questions: Sequence[AskedQuestion],
    kind: str,
    place: Place | None = None,
) -> Callable[[], float]:
    """Let an aggregator be measured on questions, with documents of a kind, all composed once.

    `place` draws the places of the relevant passages, as in training; without it they are the collection's.
    """
    measured = []
    for question in questions:
        documents = question.conditions[kind]
        if place is not None:
            rng = Random(question.query_id)
            documents = [redrawn(each, key, place, rng) for key, each in enumerate(documents)]
        measured.append(replace(question, conditions={kind: documents}))

    def mrr() -> float:
        values = ask(by_aggregators({"it": aggregator}, features), measured)
        return fmean(values["it"][kind].values())

    return mrr


def on_vectors(
    aggregator: Aggregator[Any], features: PairFeatures, kind: str, place: Place | None = None
) -> GroupScores:
    """Let an aggregator score newly drawn documents of a kind from the vectors of their passages.

    `place` draws the places of the relevant passages; without it they are drawn as in the kind.
    """
    drawn = place or partial(drawn_place, kind)

    def scores(questions: Sequence[AskedQuestion], epoch: int, rng: Random) -> Tensor:
        vectors: list[Tensor] = []
        documents: list[Arrangement] = []
        before = 0
        for question in questions:
            read = features(question).vectors  # (P, H)
            vectors.append(read)
            for key, document in enumerate(question.conditions[kind]):
                documents.append(tuple(before + each for each in redrawn(document, key, drawn, rng)))
            before += len(read)
        found: Tensor = aggregator(*arranged(Features(torch.cat(vectors)), documents))  # (D,)
        return found.view(len(questions), -1)

    return scores


def in_bf16(scores: GroupScores) -> GroupScores:
    """Compute scores, and their gradients, in bf16: a transformer then learns in 0.6 of the time."""

    def rounded(questions: Sequence[AskedQuestion], epoch: int, rng: Random) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return scores(questions, epoch, rng).float()

    return rounded


def redrawn(document: Arrangement, key: int, place: Place, rng: Random) -> Arrangement:
    """Draw a new order of a document's passages, with the relevant one at a drawn place."""
    others = [each for each in document if each != key]
    rng.shuffle(others)
    return inserted(key, others, place(len(document), rng))
