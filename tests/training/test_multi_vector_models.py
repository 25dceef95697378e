"""Published multi-vector models are trained: their libraries' losses, and all that a run promises."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.batches import Collator
from farrank_training.configuration import TrainingConfig
from farrank_training.losses import cross_entropy, kl_divergence, margin_mse, own_documents_first
from farrank_training.training_run import train
from support.multi_vector_models import save_backbone, save_pylate, save_sentence_transformers
from support.training_groups import Groups, MakeRanker, triples, validation, without_dropout

pytestmark = pytest.mark.usefixtures("one_thread")
needs_6 = pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)
CONFIG = TrainingConfig(
    loss="contrastive",
    batch_size=4,
    accumulation=1,
    epochs=2,
    checkpoint_every=1,
    validate_every=2,
    learning_rate=1e-2,
    backbone_learning_rate=1e-3,
)
# Several windows of the models below, and one.
LONG = (
    "the long document ranks chunks of passages by a query, while windows slide over its tokens (and text). "
)
TEXTS = (LONG * 6, "hello world", "", LONG * 2)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone") / "bert")


@pytest.fixture(scope="module")
def published(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sentence-transformers with markers, expansion, punctuation that is skipped, and windows."""
    expansion = {"strategy": "fixed", "attend": False, "length": 16}
    folder = tmp_path_factory.mktemp("published") / "model"
    prompts = {"query": "[Q] ", "document": "[D] "}
    return save_sentence_transformers(
        backbone, folder, document_length=40, query_length=16, expansion=expansion, prompts=prompts
    )


@needs_6
@pytest.mark.parametrize("loss", ["contrastive", "kl", "margin-mse"])
def test_a_loss_is_that_of_sentence_transformers(published: Path, loss: str) -> None:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder import losses

    groups = triples(4, others=2)
    model = MultiVectorEncoder(str(published), device="cpu").eval()
    columns = [[group.query for group in groups]]
    columns += [[group.documents[place] for group in groups] for place in range(3)]
    tasks = ("query", "document", "document", "document")
    inputs = [
        model.preprocess(texts, prompt=model.prompts[task], task=task)
        for texts, task in zip(columns, tasks, strict=True)
    ]
    teacher = torch.tensor([group.teacher for group in groups])
    theirs: dict[str, tuple[nn.Module, Tensor | None]] = {
        "contrastive": (losses.MultiVectorMultipleNegativesRankingLoss(model), None),
        "kl": (losses.MultiVectorDistillKLDivLoss(model), teacher),
        "margin-mse": (losses.MultiVectorMarginMSELoss(model), teacher[:, :1] - teacher[:, 1:]),
    }
    module, labels = theirs[loss]
    expected = module(inputs, labels)
    expected.backward()

    ranker = open_ranker(published)
    crossed = loss == "contrastive"
    batch = Collator(ranker.reader, crossed=crossed)(groups)
    scores = ranker(batch["batch"], batch["counts"], batch["query"], crossed=crossed).view(4, -1)
    if crossed:
        # sentence-transformers knows no relevant documents besides a group's own.
        found = cross_entropy(own_documents_first(scores, torch.ones_like(scores, dtype=torch.bool))).mean()
    else:
        found = (kl_divergence if loss == "kl" else margin_mse)(scores, teacher).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()  # type: ignore[no-untyped-call]
    ours, of_dense = ranker.encoder.get_submodule("head"), model[1]
    ((_, weight),), ((_, their_weight),) = ours.named_parameters(), of_dense.named_parameters()
    torch.testing.assert_close(weight.grad, their_weight.grad, rtol=1e-4, atol=1e-6)


def run(ranker: Ranker, folder: Path, config: TrainingConfig = CONFIG, **more: Any) -> None:
    train(ranker, Groups(triples(8)), config, folder, seed=7, validation=validation(), cpu=True, **more)


@needs_6
@pytest.mark.parametrize("layout", ["sentence-transformers", "pylate"])
def test_a_published_model_is_trained_and_served_in_windows(
    backbone: Path, published: Path, tmp_path: Path, layout: str
) -> None:
    folder = published
    if layout == "pylate":
        folder = save_pylate(backbone, tmp_path / "pylate", query_length=16, document_length=40)
    ranker = open_ranker(folder)
    before = ranker.version
    run(ranker, tmp_path / "run")
    opened = open_ranker(tmp_path / "run")
    assert opened.version == ranker.version != before
    assert opened.spec.options == ranker.spec.options
    expected = [each.score for each in ranker.score("neural engine", TEXTS)]
    assert [each.score for each in opened.score("neural engine", TEXTS)] == expected
    assert len(ranker.score("neural engine", TEXTS)[0].chunks) > 2
    with (
        spawned_server([f"--ranker=m={tmp_path / 'run'}", "--log-level=warning"]) as server,
        Client(server.address) as client,
    ):
        ranking = client.rerank("neural engine", list(TEXTS), ranker="m", depth="all")
    assert ranking.ranker.version == ranker.version
    served = {each.index: each.score for each in ranking.results}
    assert [served[index] for index in range(len(TEXTS))] == pytest.approx(expected, rel=1e-5, abs=1e-5)


class Ended:
    """Asks for the end of the run after a number of checks."""

    def __init__(self, after: int) -> None:
        self.left = after

    @property
    def came(self) -> bool:
        self.left -= 1
        return self.left < 0

    @contextmanager
    def held(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("lora", [None, 2])
def test_a_resumed_run_ends_with_the_same_weights(
    make_ranker: MakeRanker, tmp_path: Path, lora: int | None
) -> None:
    save_ranker(make_ranker("maxsim", dropout=True), tmp_path / "start")
    config = replace(CONFIG, lora_rank=lora, lora_learning_rate=1e-2)
    run(open_ranker(tmp_path / "start"), tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        run(open_ranker(tmp_path / "start"), tmp_path / "cut", config, interrupts=Ended(2))
    assert not (tmp_path / "cut" / "ranker.json").exists()
    run(open_ranker(tmp_path / "start"), tmp_path / "cut", config, resume=True)
    whole, cut = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()
    assert json.loads((tmp_path / "cut" / "training.json").read_text())["steps"] == 4


def test_low_rank_differences_are_merged(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker = without_dropout(make_ranker("maxsim"))
    before = {name: each.clone() for name, each in ranker.state_dict().items()}
    run(ranker, tmp_path, replace(CONFIG, lora_rank=2, lora_learning_rate=1e-2))
    after = open_ranker(tmp_path).state_dict()
    assert after.keys() == before.keys()
    changed = {name for name, each in after.items() if not torch.equal(each, before[name])}
    assert any("attention" in name for name in changed)
    assert not any("embeddings" in name for name in changed)
