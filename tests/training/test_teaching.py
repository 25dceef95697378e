"""A teacher's file holds its own scores, and others learn its order from it."""

import json
from pathlib import Path

import pytest
import torch

from farrank_rankers.ranker import Ranker
from farrank_training.batches import Collator
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.losses import from_0_to_1
from farrank_training.ranking_trainer import RankingTrainer
from farrank_training.teaching import teach
from farrank_training.training_set import jsonl_set
from support.training_groups import FILLER, WORDS, Groups, MakeRanker

LINES = [
    {
        "query": word,
        "pos": [f"{word} {FILLER * 4}", f"{FILLER} {word}"],
        "neg": [f"{FILLER * number} {other}" for number, other in enumerate(WORDS) if other != word],
    }
    for word in WORDS[:4]
]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.mark.parametrize("family", ["maxp", "parade-attn", "maxsim", "biencoder"])
def test_any_ranker_teaches_by_its_scores(
    make_ranker: MakeRanker, lines: Path, tmp_path: Path, family: str
) -> None:
    teacher = make_ranker(family)
    told: list[int] = []
    count = teach(
        teacher, jsonl_set(lines), tmp_path / "taught.jsonl", negatives=3, batch_size=2, progress=told.append
    )
    assert (count, told) == (4 * 5, [1, 2, 3, 4])
    for text, line in zip((tmp_path / "taught.jsonl").read_text().splitlines(), LINES, strict=True):
        found = json.loads(text)
        assert (found["query"], found["pos"]) == (line["query"], line["pos"])
        assert len(set(found["neg"])) == 3
        assert set(found["neg"]) <= set(line["neg"])
        documents = [*found["pos"], *found["neg"]]
        expected = [each.score for each in make_ranker(family).score(found["query"], documents)]
        assert [*found["pos_scores"], *found["neg_scores"]] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def lists_of(ranker: Ranker, groups: Groups) -> torch.Tensor:
    batch = Collator(ranker.reader)(groups.groups)
    with torch.inference_mode():
        scores: torch.Tensor = ranker.eval()(batch["batch"], batch["counts"], batch["query"])
    return from_0_to_1(scores.view(len(groups.groups), -1))


def test_a_multi_vector_ranker_learns_a_cross_encoders_lists(
    make_ranker: MakeRanker, lines: Path, tmp_path: Path
) -> None:
    teach(make_ranker("maxp"), jsonl_set(lines), tmp_path / "taught.jsonl")
    taught = jsonl_set(tmp_path / "taught.jsonl", negatives=5)
    groups = Groups([taught.group(index, 0) for index in range(4)])
    teacher = from_0_to_1(torch.tensor([group.teacher for group in groups.groups]))
    student = make_ranker("maxsim")
    before = (lists_of(student, groups) - teacher).square().mean()
    config = TrainingConfig(
        loss="kl",
        negatives=5,
        batch_size=4,
        accumulation=1,
        epochs=150,
        backbone_learning_rate=3e-3,
        learning_rate=3e-3,
        checkpoint_every=1000,
    )
    RankingTrainer(student, groups, config, tmp_path / "run", cpu=True).train_on()
    assert (lists_of(student, groups) - teacher).square().mean() < before / 5


def test_a_long_document_is_read_as_training_does(
    make_ranker: MakeRanker, lines: Path, tmp_path: Path
) -> None:
    scores = []
    for name, tokens in (("own", None), ("short", 8)):
        teach(make_ranker("maxsim"), jsonl_set(lines), tmp_path / name, document_tokens=tokens)
        scores.append([json.loads(line)["neg_scores"] for line in (tmp_path / name).read_text().splitlines()])
    assert scores[0] != scores[1]


def test_nothing_is_left_of_a_file_that_cannot_be_finished(make_ranker: MakeRanker, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(LINES[0]) + "\n" + json.dumps(LINES[1] | {"query": "\ufffd"}) + "\n")
    with pytest.raises(TrainingError, match="query '\ufffd' holds no token; it needs at least 1"):
        teach(make_ranker("maxsim"), jsonl_set(path), tmp_path / "taught.jsonl")
    broken = make_ranker("firstp")
    with torch.no_grad():
        broken.aggregator.get_parameter("head.linear.bias").fill_(torch.nan)
    with pytest.raises(TrainingError, match="has the score nan; the teacher's weights are broken"):
        teach(broken, jsonl_set(path), tmp_path / "taught.jsonl")
    assert [each.name for each in tmp_path.iterdir()] == ["lines.jsonl"]
