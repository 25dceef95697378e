"""The trainer's computations: gradients, rates, precision, and everything that follows the seed."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from farrank_rankers.ranker import Ranker
from farrank_training.batches import Collator
from farrank_training.configuration import KlScores, TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import Group
from farrank_training.losses import check_loss, cross_entropy, from_0_to_1, hinge, own_documents_first
from farrank_training.ranking_trainer import RankingTrainer, _Shuffled, rate_factor
from support.training_groups import Groups, MakeRanker, triples

QUIET: dict[str, Any] = {"checkpoint_every": 10_000}


class Seen(TrainerCallback):  # type: ignore[misc]  # untyped
    """Records the gradients and rates of a step, and the number of steps that AdamW remembers."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Tensor]] = []
        self.rates: list[list[float]] = []
        self.remembered: list[set[int]] = []

    def on_pre_optimizer_step(self, *_: Any, **objects: Any) -> None:
        named = objects["model"].named_parameters()
        self.gradients.append(
            {name: weight.grad.clone() for name, weight in named if weight.grad is not None}
        )
        self.rates.append([group["lr"] for group in objects["optimizer"].param_groups])

    def on_step_end(self, *_: Any, **objects: Any) -> None:
        states = objects["optimizer"].state.values()
        self.remembered.append({int(state["step"]) for state in states})


def trained(ranker: Ranker, groups: Groups, folder: Path, seed: int = 0, **settings: Any) -> Seen:
    seen = Seen()
    config = TrainingConfig(**QUIET | settings)
    RankingTrainer(ranker, groups, config, folder, seed=seed, cpu=True, callbacks=[seen]).train_on()
    return seen


@pytest.mark.parametrize("family", ["maxp", "parade-attn", "cedr-knrm", "parade-transf-pretr-lateir"])
def test_accumulated_triples_give_the_gradient_of_one_batch(
    family: str, make_ranker: MakeRanker, tmp_path: Path
) -> None:
    groups = triples(16)
    found = {
        size: trained(
            make_ranker(family),
            Groups(groups),
            tmp_path / str(size),
            batch_size=size,
            accumulation=16 // size,
        ).gradients
        for size in (1, 4, 16)
    }
    assert {len(each) for each in found.values()} == {1}
    ranker = make_ranker(family)
    batch = Collator(ranker.reader)(groups)
    scores = ranker(batch["batch"], batch["counts"], batch["query"]).view(16, -1)
    hinge(scores).mean().backward()  # type: ignore[no-untyped-call]
    for name, weight in ranker.named_parameters():
        assert weight.grad is not None
        for (gradients,) in found.values():
            torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_a_short_last_step_is_divided_by_its_own_groups(make_ranker: MakeRanker, tmp_path: Path) -> None:
    groups = triples(6)
    whole, parts = (
        trained(make_ranker("maxp"), Groups(groups), tmp_path / str(size), batch_size=size, accumulation=8)
        for size in (6, 4)
    )
    for name, gradient in whole.gradients[0].items():
        torch.testing.assert_close(parts.gradients[0][name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_rates_rise_at_the_beginning_of_each_epoch_and_fall_between_them() -> None:
    config = TrainingConfig(warmup=0.2, epoch_decay=0.95)
    factors = [rate_factor(step, 10, config) for step in range(20)]
    rising = [1 / 3, 2 / 3] + [1.0] * 8
    assert factors == pytest.approx(rising + [0.95 * each for each in rising])
    assert rate_factor(0, 1, TrainingConfig(warmup=0.0)) == 1.0
    assert all(rate_factor(step, 1, config) > 0 for step in range(3))


def test_each_epoch_has_a_fresh_optimiser_and_two_rates(make_ranker: MakeRanker, tmp_path: Path) -> None:
    seen = trained(make_ranker("maxp"), Groups(triples(4)), tmp_path, accumulation=2, epochs=2, warmup=0.0)
    assert seen.remembered == [{1}, {2}, {1}, {2}]
    assert seen.rates == [pytest.approx([1e-5, 1e-4])] * 2 + [pytest.approx([0.95e-5, 0.95e-4])] * 2


def test_nothing_is_clipped(make_ranker: MakeRanker, tmp_path: Path) -> None:
    seen = trained(make_ranker("maxp"), Groups(triples(2)), tmp_path, accumulation=2, score_scale=1000.0)
    (gradients,) = seen.gradients
    assert math.sqrt(sum(float(each.square().sum()) for each in gradients.values())) > 10


def test_every_group_is_read_once_an_epoch_in_an_order_of_its_own(
    make_ranker: MakeRanker, tmp_path: Path
) -> None:
    asked: list[list[tuple[int, int]]] = []
    for seed in (0, 0, 1):
        groups = Groups(triples(8))
        trained(make_ranker("firstp"), groups, tmp_path / str(len(asked)), seed, accumulation=4, epochs=2)
        asked.append(groups.asked[1:])  # the first is read to see which weights affect scores
    first, again, other = asked
    assert first == again != other
    for epoch in (0, 1):
        assert sorted(index for of, index in first if of == epoch) == list(range(8))
    assert [index for epoch, index in first if epoch == 0] != [index for epoch, index in first if epoch == 1]


def test_the_seed_decides_all_that_is_random(make_ranker: MakeRanker, tmp_path: Path) -> None:
    def weights(number: int, seed: int) -> str:
        ranker = make_ranker("parade-attn", dropout=True)
        torch.rand(number)  # whatever was drawn before
        trained(ranker, Groups(triples(8)), tmp_path / str(number), seed, accumulation=2)
        return ranker.weights_digest

    assert weights(1, seed=5) == weights(2, seed=5) != weights(3, seed=6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_bf16_is_the_encoders_alone(make_ranker: MakeRanker, tmp_path: Path, checkpointing: bool) -> None:
    in_full = trained(make_ranker("cedr-knrm"), Groups(triples(4)), tmp_path / "fp32", accumulation=4)
    ranker = make_ranker("cedr-knrm")
    seen: set[tuple[str, torch.dtype]] = set()

    def note(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        seen.add((type(module).__name__, output.dtype))

    for module in ranker.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(note)
    ranker.aggregator.register_forward_hook(
        lambda module, inputs, output: seen.add(("features", inputs[0].vectors.dtype))
    )
    ranker.aggregator.get_submodule("combine").register_forward_hook(
        lambda module, inputs, output: seen.add(("combine", output.dtype))
    )
    found = trained(
        ranker,
        Groups(triples(4)),
        tmp_path / "bf16",
        accumulation=4,
        precision="bf16",
        gradient_checkpointing=checkpointing,
    )
    assert ("features", torch.float32) in seen
    assert ("combine", torch.float32) in seen
    assert ("Linear", torch.bfloat16) in seen
    assert all(weight.dtype == torch.float32 for weight in ranker.parameters())
    (expected,), (gradients,) = in_full.gradients, found.gradients
    assert {name: each.shape for name, each in gradients.items()} == {
        name: each.shape for name, each in expected.items()
    }
    name = "aggregator.combine.weight"
    torch.testing.assert_close(gradients[name], expected[name], rtol=0.1, atol=0.05)


def test_gradient_checkpoints_change_no_gradient(make_ranker: MakeRanker, tmp_path: Path) -> None:
    plain, twice = (
        trained(
            make_ranker("maxp"),
            Groups(triples(4)),
            tmp_path / str(on),
            accumulation=4,
            gradient_checkpointing=on,
        )
        for on in (False, True)
    )
    for name, gradient in plain.gradients[0].items():
        torch.testing.assert_close(twice.gradients[0][name], gradient, rtol=1e-4, atol=1e-7, msg=name)


def test_what_no_score_depends_on_stays_as_it_is(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker = make_ranker("maxp")
    ranker.aggregator.register_parameter("spare", torch.nn.Parameter(torch.ones(2)))
    config = TrainingConfig(accumulation=2, weight_decay=10.0, **QUIET)
    trainer = RankingTrainer(ranker, Groups(triples(4)), config, tmp_path, cpu=True)
    assert trainer.unread == ["aggregator.spare"]
    trainer.train_on()
    assert ranker.aggregator.get_parameter("spare").tolist() == [1.0, 1.0]


def test_knrms_narrow_kernel_stays_wide_enough(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker = make_ranker("cedr-knrm")
    trained(ranker, Groups(triples(8)), tmp_path, accumulation=1, learning_rate=0.01)
    sigma = ranker.aggregator.get_parameter("sigma")
    assert sigma.min() >= 5e-4
    assert all(weight.isfinite().all() for weight in ranker.parameters())


def test_a_teacher_is_learned_from(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker, groups = make_ranker("maxp"), triples(4, others=2)
    trained(
        ranker,
        Groups(groups, times=80),
        tmp_path,
        loss="margin-mse",
        batch_size=4,
        accumulation=1,
        backbone_learning_rate=3e-3,
        learning_rate=3e-3,
    )
    batch = Collator(ranker.reader)(groups)
    with torch.inference_mode():
        scores = ranker.eval()(batch["batch"], batch["counts"], batch["query"]).view(4, -1)
    # The teacher's scores are 2, 1 and 0.
    assert (scores[:, 0] - scores[:, 1]).tolist() == pytest.approx([1.0] * 4, abs=0.3)
    assert (scores[:, 0] - scores[:, 2]).tolist() == pytest.approx([2.0] * 4, abs=0.3)


def contrastive_loss(ranker: Ranker, groups: list[Group]) -> Tensor:
    """Compute the loss of one batch, (B,)."""
    batch = Collator(ranker.reader, crossed=True)(groups)
    assert batch["competing"] is not None
    scores = ranker(batch["batch"], batch["counts"], batch["query"], crossed=True)
    return cross_entropy(own_documents_first(scores, batch["competing"]))


def test_batches_of_a_step_have_negatives_of_their_own(make_ranker: MakeRanker, tmp_path: Path) -> None:
    groups = triples(8)
    seen = trained(
        make_ranker("maxsim"), Groups(groups), tmp_path, loss="contrastive", batch_size=4, accumulation=2
    )
    order = [index for _, index in _Shuffled(8, seed=0)]
    ranker = make_ranker("maxsim")
    halves = [[groups[index] for index in order[start : start + 4]] for start in (0, 4)]
    loss = torch.cat([contrastive_loss(ranker, half) for half in halves]).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    (gradients,) = seen.gradients
    expected = {name: each.grad for name, each in ranker.named_parameters() if each.grad is not None}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", ["maxsim", "biencoder"])
def test_a_batch_is_told_apart(family: str, make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker, groups = make_ranker(family), triples(8)
    scale = 20.0 if family == "biencoder" else 5.0
    trained(
        ranker,
        Groups(groups, times=60),
        tmp_path,
        loss="contrastive",
        batch_size=len(groups),
        accumulation=1,
        backbone_learning_rate=2e-3,
        learning_rate=2e-3,
        score_scale=scale,
    )
    batch = Collator(ranker.reader, crossed=True)(groups)
    with torch.inference_mode():
        scores = ranker.eval()(batch["batch"], batch["counts"], batch["query"], crossed=True)
    # The documents of a word: relevant to its own query alone, and a negative of the query before.
    assert scores[:, ::2].argmax(dim=1).tolist() == list(range(len(groups)))


def test_a_list_is_learned_from_a_teacher(make_ranker: MakeRanker, tmp_path: Path) -> None:
    for of in get_args(KlScores):
        ranker, groups = make_ranker("maxsim"), triples(4, others=3)
        trained(
            ranker,
            Groups(groups, times=150),
            tmp_path / of,
            loss="kl",
            kl_scores=of,
            negatives=3,
            batch_size=4,
            accumulation=1,
            backbone_learning_rate=3e-3,
            learning_rate=3e-3,
        )
        batch = Collator(ranker.reader)(groups)
        with torch.inference_mode():
            scores = ranker.eval()(batch["batch"], batch["counts"], batch["query"]).view(4, -1)
        teacher = torch.tensor([3.0, 2.0, 1.0, 0.0])
        if of == "min-max":
            scores, teacher = from_0_to_1(scores), from_0_to_1(teacher[None])[0]
        # Only differences count.
        leads = scores[:, :1] - scores
        torch.testing.assert_close(leads, (teacher[0] - teacher).expand(4, -1), rtol=0.0, atol=0.3, msg=of)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        (
            "maxp",
            {"loss": "contrastive", "batch_size": 2},
            "loss is contrastive; it must be another one: maxp reads a document together with its query",
        ),
        (
            "biencoder",
            {"loss": "contrastive"},
            "batch_size is 1; it must be at least 2: contrastive compares a query with the documents of the "
            "batch's other queries",
        ),
        (
            "maxsim",
            {"loss": "kl"},
            "negatives is 1; it must be at least 2 for kl with min-max scores: those of two documents are "
            "always 0 and 1",
        ),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(
    make_ranker: MakeRanker, tmp_path: Path, family: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError) as caught:
        trained(make_ranker(family), Groups(triples(2)), tmp_path / "run", **settings)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_raw_scores_of_two_documents_can_be_distilled(make_ranker: MakeRanker) -> None:
    check_loss(make_ranker("maxsim").spec, TrainingConfig(loss="kl", kl_scores="raw"))


def test_a_missing_teacher_is_reported(make_ranker: MakeRanker, tmp_path: Path) -> None:
    groups = Groups([each.__class__(each.query_id, each.query, each.documents) for each in triples(2)])
    with pytest.raises(TrainingError, match="loss is margin-mse, which needs a teacher's scores"):
        trained(make_ranker("firstp"), groups, tmp_path, loss="margin-mse")


def test_diverging_weights_are_reported(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker = make_ranker("firstp")
    with torch.no_grad():
        ranker.aggregator.get_parameter("head.linear.bias").fill_(torch.nan)
    with pytest.raises(TrainingError, match="the loss of the steps up to 2 is nan: training diverged"):
        trained(ranker, Groups(triples(4)), tmp_path, accumulation=2)


def test_more_layers_than_there_are(make_ranker: MakeRanker, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match="trained_layers is 3; it must be at most the 2 layers of steady-bert"
    ):
        trained(make_ranker("firstp"), Groups(triples(2)), tmp_path, trained_layers=3)
