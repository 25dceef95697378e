"""A run from its start to an artifact: its files, and its resumption after any interruption."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.training_run import FinishedRun, train
from farrank_training.validation import rerank
from farrank_trec import read_run
from support import forked, killed_training
from support.training_groups import Groups, MakeRanker, triples, validation

pytestmark = pytest.mark.usefixtures("one_thread")

MOMENTS = ("reading", "writing", "placing", "deleting", "validating", "keeping", "saving", "reporting")


@pytest.fixture(scope="module")
def artifact(make_ranker: MakeRanker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ranker with dropout to start from: its random numbers must continue where they stopped."""
    folder = tmp_path_factory.mktemp("start") / "attn"
    save_ranker(make_ranker("parade-attn", dropout=True), folder)
    return folder


@pytest.fixture(scope="module")
def killed(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: one without a kill, and for each moment one that was killed there and resumed."""
    folder = tmp_path_factory.mktemp("killed")
    code = "import sys; from support.killed_training import main; main(*sys.argv[1:])"
    done = forked.run([sys.executable, "-c", code, artifact, folder, "never", *MOMENTS])
    assert done.returncode == 0, done.stderr
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the log's lines without values of the clock."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in each.items() if key != "documents_per_s"} for each in entries]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_with_the_same_weights(killed: Path, moment: str) -> None:
    never, resumed = killed / "never", killed / moment
    for name in ("model.safetensors", "dev.trec", "ranker.json", "config.json", "tokenizer.json"):
        assert (resumed / name).read_bytes() == (never / name).read_bytes(), name
    assert lines(resumed / "log.jsonl") == lines(never / "log.jsonl")
    reports = [json.loads((folder / "training.json").read_text()) for folder in (never, resumed)]
    for report in reports:
        del report["documents_per_s"]
    assert reports[0] == reports[1]
    assert {path.name for path in resumed.iterdir()} == {path.name for path in never.iterdir()}


def test_what_a_run_leaves(killed: Path) -> None:
    folder = killed / "never"
    assert {path.name for path in folder.iterdir()} == {
        *("ranker.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("training.json", "dev.trec", "log.jsonl", "tensorboard"),
    }
    report = json.loads((folder / "training.json").read_text())
    assert report["settings"]["learning_rate"] == 1e-2
    assert report["seed"] == 7
    assert (report["groups"], report["steps"]) == (8, 8)
    assert report["data"] == {"memory": "8"}
    assert [each["step"] for each in report["validations"]] == [3, 6, 8]
    best = max(report["validations"], key=lambda each: each["RR"])
    assert (report["best_step"], report["measures"]["RR"]) == (best["step"], best["RR"])
    assert {"RR", "nDCG@10", "AP"} <= report["measures"].keys()
    assert {"farrank", "torch", "transformers", "accelerate"} <= report["versions"].keys()
    entries = lines(folder / "log.jsonl")
    assert [each["step"] for each in entries if "loss" in each] == list(range(1, 9))
    assert [each["step"] for each in entries if "RR" in each] == [3, 6, 8]
    assert list((folder / "tensorboard").iterdir())


def test_the_best_weights_are_those_that_were_validated(killed: Path) -> None:
    folder = killed / "never"
    ranker = open_ranker(folder)
    run = rerank(ranker, validation(), TrainingConfig())
    assert run == read_run(folder / "dev.trec")
    provenance = ranker.spec.provenance
    report = json.loads((folder / "training.json").read_text())
    assert provenance["best_step"] == str(report["best_step"])
    assert provenance["trained_from"] == report["started_from"]["version"]
    assert provenance["training_data"] == "memory 8"
    assert provenance["training_seed"] == "7"
    # Scores as they are served: the offline reference computes evidence, too.
    dev = validation()
    for query_id, ranked in run.items():
        found = ranker.score(dev.queries[query_id], [dev.texts.text(each.doc_id) for each in ranked])
        assert [each.score for each in found] == pytest.approx([each.score for each in ranked], abs=1e-5)


def trained(ranker: Ranker, folder: Path, config: TrainingConfig | None = None, **more: Any) -> FinishedRun:
    return train(
        ranker, Groups(triples(8)), config or TrainingConfig(accumulation=2), folder, cpu=True, **more
    )


class Told:
    """Asks for the end of the run after a number of checks."""

    def __init__(self, after: int) -> None:
        self.left, self.inside = after, False

    @property
    def came(self) -> bool:
        self.left -= 1
        return self.left < 0

    @contextmanager
    def held(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False


@pytest.mark.parametrize("after", [0, 2, 5, 9])
def test_an_ended_training_saves_and_resumes_later(
    make_ranker: MakeRanker, killed: Path, artifact: Path, tmp_path: Path, after: int
) -> None:
    more: dict[str, Any] = {"config": killed_training.CONFIG, "seed": 7, "validation": validation()}
    with pytest.raises(KeyboardInterrupt):
        trained(open_ranker(artifact), tmp_path / "run", interrupts=Told(after), **more)
    assert not (tmp_path / "run" / "ranker.json").exists()
    assert (tmp_path / "run" / "checkpoints").is_dir()
    found = trained(open_ranker(artifact), tmp_path / "run", resume=True, **more)
    weights = [folder / "model.safetensors" for folder in (tmp_path / "run", killed / "never")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert lines(tmp_path / "run" / "log.jsonl") == lines(killed / "never" / "log.jsonl")
    # A finished run is left unchanged.
    assert trained(open_ranker(artifact), tmp_path / "run", resume=True, **more) == found


def test_a_run_without_validation_keeps_the_last_weights(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker = make_ranker("maxp")
    found = trained(ranker, tmp_path)
    assert found == FinishedRun(tmp_path, 0, 4, 4, {})
    assert not (tmp_path / "dev.trec").exists()
    assert open_ranker(tmp_path).version == ranker.version


def test_training_ends_when_patience_does(make_ranker: MakeRanker, tmp_path: Path) -> None:
    config = TrainingConfig(
        accumulation=1, learning_rate=0.0, backbone_learning_rate=0.0, validate_every=1, patience=2
    )
    found = trained(make_ranker("maxp"), tmp_path, config, validation=validation())
    # The ranker learns nothing, so the first measurement stays the best.
    assert (found.best_step, found.steps) == (1, 3)


def test_low_rank_is_merged_into_the_artifact(make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker = make_ranker("maxp")
    before = ranker.weights_digest
    config = TrainingConfig(accumulation=2, lora_rank=2, lora_learning_rate=1e-2)
    trained(ranker, tmp_path, config, validation=validation())
    opened = open_ranker(tmp_path)
    assert opened.weights_digest == ranker.weights_digest != before


class Counted:
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, what: str, total: int | None = None, *, done: int = 0) -> None:
        self.told.append(f"{what}: {done} of {total}")

    def __call__(self, count: int, note: str = "") -> None:
        self.told.append(f"{count} {note}")

    def end(self) -> None:
        self.told.append("end")


def test_progress_tells_loss_measure_and_speed(make_ranker: MakeRanker, tmp_path: Path) -> None:
    watcher = Counted()
    config = TrainingConfig(accumulation=2, validate_every=2, log_every=1)
    trained(make_ranker("maxp"), tmp_path, config, validation=validation(), watcher=watcher)
    told = watcher.told
    assert told[0] == "steps of seed 0: 0 of 4"
    assert "validation queries: 0 of 4" in told
    assert "steps of seed 0: 2 of 4" in told
    last = next(line for line in reversed(told) if line.startswith("4 loss "))
    assert "MRR 0." in last
    assert "(best 0." in last
    assert last.endswith(" documents/s")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.5}, "the run began with learning_rate 0.01, but now it is 0.5"),
        ({"seed": 8}, "the run began with seed 7, but now it is 8"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_only_the_same_run_goes_on(
    killed: Path, artifact: Path, tmp_path: Path, change: dict[str, Any], message: str, finished: bool
) -> None:
    folder, seed = killed / "never", change.get("seed", 7)
    settings = {name: value for name, value in change.items() if name != "seed"}
    config = replace(killed_training.CONFIG, **settings)
    if not finished:
        folder = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            trained(open_ranker(artifact), folder, killed_training.CONFIG, seed=7, interrupts=Told(0))
    with pytest.raises(TrainingError) as caught:
        trained(open_ranker(artifact), folder, config, seed=seed, resume=True)
    assert str(caught.value) == f"--resume {folder}: {message}"


def test_a_folder_that_is_taken_is_left_alone(make_ranker: MakeRanker, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("important")
    for resume in (False, True):
        with pytest.raises(TrainingError, match="must be a new or an empty folder"):
            trained(make_ranker("maxp"), tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_patience_needs_validation(make_ranker: MakeRanker, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="patience is 2; without validation queries it must be none"):
        trained(make_ranker("maxp"), tmp_path, TrainingConfig(patience=2))
