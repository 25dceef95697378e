"""`farrank train`: from files to served rankers, settings from a file and flags, and refusals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farrank_rankers.chunking import Chunking
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_training.configuration import settings
from farrank_trec import read_run
from support import forked

if TYPE_CHECKING:
    from support.commands import Outcome

pytestmark = pytest.mark.usefixtures("one_thread")

Farrank = Callable[..., "Outcome"]

WORDS = ["river", "engine", "violin", "harbour"]
SIZES = ("--window", 24, "--stride", 16, "--max-document-tokens", 64, "--max-query-tokens", 8)
QUICK = ("--accumulation", 2, "--backbone-learning-rate", "1e-3", "--learning-rate", "1e-2", "--cpu")


def write_part(folder: Path, name: str, queries: int) -> None:
    """Write queries of one word each, relevant documents with that word, and candidates of both kinds."""
    words = {f"{name}{number}": number % len(WORDS) for number in range(queries)}
    (folder / f"{name}.tsv").write_text("".join(f"{key}\t{WORDS[word]}\n" for key, word in words.items()))
    (folder / f"{name}.qrels").write_text(
        "".join(
            f"{key} 0 d{number} 1\n"
            for key, word in words.items()
            for number in range(12)
            if number % 4 == word
        )
    )
    (folder / f"{name}.trec").write_text(
        "".join(f"{key} Q0 d{number} {number + 1} {-number} bm25\n" for key in words for number in range(6))
    )


@pytest.fixture(scope="module")
def data(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small collection, queries for training and validation, and a ranker to start from."""
    folder = tmp_path_factory.mktemp("data")
    texts = {f"d{number}": f"{WORDS[number % 4]} and some other words {number}" for number in range(12)}
    lines = [json.dumps({"id": doc_id, "text": text}) + "\n" for doc_id, text in texts.items()]
    (folder / "docs.jsonl").write_text("".join(lines))
    write_part(folder, "train", 8)
    write_part(folder, "dev", 4)
    pairs = [(word, other) for word in WORDS for other in WORDS if word != other]
    (folder / "triples.tsv").write_text("".join(f"{a}\tthe {a} here\tthe {b} there\n" for a, b in pairs))
    examples: list[dict[str, Any]] = [
        {"query": a, "pos": [f"the {a}"], "neg": [f"the {b}"]} for a, b in pairs
    ]
    (folder / "examples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
    ranker = new_ranker(
        "maxp", tiny_backbone, Chunking("sliding", 24, 16, 64), pretrained=False, max_query_tokens=8
    )
    save_ranker(ranker, folder / "start")
    multi_vector = new_ranker(
        "maxsim", tiny_backbone, Chunking("disjoint", 24, 24, 64), pretrained=False, max_query_tokens=8
    )
    save_ranker(multi_vector, folder / "multi-vector")
    taught = [each | {"pos_scores": [3.0], "neg_scores": [0.5, -1.0]} for each in examples]
    for each in taught:
        each["neg"] = [*each["neg"], "nothing of it"]
    (folder / "taught.jsonl").write_text("".join(json.dumps(each) + "\n" for each in taught))
    return folder


@pytest.fixture
def train(farrank: Farrank, data: Path, monkeypatch: pytest.MonkeyPatch) -> Farrank:
    """Train in the data's folder."""
    monkeypatch.chdir(data)

    def run(*arguments: object) -> Outcome:
        return farrank("train", *arguments)

    return run


JUDGED = ("--queries", "train.tsv", "--qrels", "train.qrels", "--candidates", "train.trec")
COLLECTION = ("--collection", "docs.jsonl")
DEV = ("--dev-queries", "dev.tsv", "--dev-qrels", "dev.qrels", "--dev-candidates", "dev.trec")
START = ("--from", "start")
MULTI_VECTOR = ("--from", "multi-vector")


def test_two_seeds_of_a_new_ranker(train: Farrank, tiny_backbone: Path, tmp_path: Path) -> None:
    new = ("--family", "parade-attn", "--backbone", tiny_backbone, "--random-weights", *SIZES)
    flags = (*new, *JUDGED, *COLLECTION, *DEV, *QUICK, "--seeds", "0,3", "--out", tmp_path)
    outcome = train(*flags)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.err.endswith("8 groups an epoch\n")
    heads, *rows = (line.split() for line in outcome.out.splitlines())
    assert heads[:5] == ["seed", "best", "step", "steps", "MRR"]
    assert [row[0] for row in rows] == ["0", "3", "mean"]
    measures = json.loads((tmp_path / "measures.json").read_text())
    reports = [json.loads((tmp_path / f"seed-{seed}" / "training.json").read_text()) for seed in (0, 3)]
    for name in ("measures", "best_step", "steps"):
        assert [each[name] for each in measures["seeds"]] == [each[name] for each in reports]
    mean = sum(report["measures"]["RR"] for report in reports) / 2
    assert measures["mean"]["RR"] == pytest.approx(mean)
    assert rows[2][1] == f"{mean:.4f}"
    assert reports[0]["data"].keys() == {"train.tsv", "train.qrels", "train.trec", "docs.jsonl"}
    rankers = [open_ranker(tmp_path / f"seed-{seed}") for seed in (0, 3)]
    assert rankers[0].spec.chunking == Chunking("sliding", 24, 16, 64)
    assert rankers[0].version != rankers[1].version
    # Finished seeds are kept.
    again = train(*flags, "--resume")
    assert (again.exit_code, again.out) == (0, outcome.out)
    taken = train(*flags)
    assert taken.exit_code == 2
    assert "must be a new or an empty folder; --resume goes on" in taken.err


@pytest.mark.parametrize("source", [("--triples", "triples.tsv"), ("--examples", "examples.jsonl")])
def test_fine_tuning_on_texts(train: Farrank, tmp_path: Path, source: tuple[str, str]) -> None:
    outcome = train(*START, *source, *QUICK, "--loss", "ranknet", "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.err
    started, trained = open_ranker("start"), open_ranker(tmp_path / "seed-0")
    assert trained.version != started.version
    assert trained.spec.provenance["trained_from"] == started.version
    # Without validation there is nothing to measure.
    assert outcome.out.splitlines()[0].split() == ["seed", "best", "step", "steps"]


def test_a_multi_vector_ranker_has_its_papers_settings(
    train: Farrank, tiny_backbone: Path, tmp_path: Path
) -> None:
    (tmp_path / "kl.yaml").write_text("loss: kl\nlearning_rate: 1e-3\n")
    new = ("--family", "maxsim", "--backbone", tiny_backbone, "--random-weights")
    mean = ("--option", "mean=true", "--window", 24, "--stride", 24)
    runs: dict[str, tuple[object, ...]] = {
        "batch": (*MULTI_VECTOR, *JUDGED, *COLLECTION, *DEV),
        "list": (
            *MULTI_VECTOR,
            "--examples",
            "taught.jsonl",
            "--config",
            tmp_path / "kl.yaml",
            "--negatives",
            2,
        ),
        "pairs": (*new, *mean, "--examples", "taught.jsonl", "--loss", "margin-mse"),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, flags in runs.items():
        outcome = train(*flags, "--cpu", "--out", tmp_path / name)
        assert outcome.exit_code == 0, outcome.err
        found[name] = json.loads((tmp_path / name / "seed-0" / "training.json").read_text())["settings"]
        assert open_ranker(tmp_path / name / "seed-0").spec.family == "maxsim"
    names = ("loss", "batch_size", "accumulation", "negatives", "learning_rate", "score_scale")
    assert {name: [settings[each] for each in names] for name, settings in found.items()} == {
        "batch": ["contrastive", 32, 1, 1, 3e-6, 1.0],
        "list": ["kl", 1, 32, 2, 1e-3, 1.0],
        "pairs": ["margin-mse", 1, 32, 1, 3e-6, 32.0],
    }


def test_flags_win_over_the_file(train: Farrank, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("accumulation: 4\nlearning_rate: 1e-2\nwarmup: 0.5\n")
    flags = ("--config", tmp_path / "a.yaml", "--warmup", 0, "--epochs", 2, "--gradient-checkpointing")
    outcome = train(*START, "--triples", "triples.tsv", *flags, "--cpu", "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.err
    found = json.loads((tmp_path / "out" / "seed-0" / "training.json").read_text())["settings"]
    assert (found["accumulation"], found["learning_rate"]) == (4, 0.01)
    assert (found["warmup"], found["epochs"], found["gradient_checkpointing"]) == (0.0, 2, True)


def test_every_setting_has_a_flag(farrank: Farrank) -> None:
    shown = farrank("train", "--help").out
    for name, _, _ in settings():
        assert f"--{name.replace('_', '-')}" in shown
    assert "one of the two other kinds" in shown
    assert "random seeds, one run each (0)\n" in shown


def test_folds(train: Farrank, tmp_path: Path) -> None:
    flags = (*START, *JUDGED, *COLLECTION, *QUICK, "--out", tmp_path, "--seeds", "0,1")
    outcome = train(*flags, "--folds", 4, "--negatives-from", 6)
    assert outcome.exit_code == 0, outcome.err
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["seed", "0", "1", "mean"]
    for seed in (0, 1):
        tests = [read_run(tmp_path / f"fold-{fold}" / f"seed-{seed}" / "test.trec") for fold in (1, 2, 3, 4)]
        pooled = read_run(tmp_path / f"seed-{seed}.trec")
        assert pooled == {query_id: ranked for run in tests for query_id, ranked in run.items()}
        assert len(pooled) == sum(map(len, tests)) == 8
        for number, test in enumerate(tests):
            folder = tmp_path / f"fold-{number + 1}" / f"seed-{seed}"
            report = json.loads((folder / "training.json").read_text())
            assert report["groups"] == 4
            dev = read_run(folder / "dev.trec")
            assert dev.keys() == tests[(number + 1) % 4].keys()
            assert not dev.keys() & test.keys()
    # Interrupted after the second fold's training and before its test.
    shutil.rmtree(tmp_path / "fold-4")
    (tmp_path / "fold-2" / "seed-1" / "test.trec").unlink()
    again = train(*flags, "--folds", 4, "--negatives-from", 6, "--resume")
    assert (again.exit_code, again.out) == (0, outcome.out)


STOPPING = """
import sys
import farrank_training.reports as reports
original = reports.Reports.on_step_end
def told(self, args, state, control, **objects):
    original(self, args, state, control, **objects)
    if state.global_step == 3:
        print("three", flush=True)
        sys.stdin.readline()
reports.Reports.on_step_end = told
from farrank_cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_saves_and_ends_with_130(train: Farrank, data: Path, tmp_path: Path) -> None:
    flags = (*START, "--triples", "triples.tsv", *QUICK, "--out")
    command = [sys.executable, "-c", STOPPING, "train", *map(str, flags), str(tmp_path / "cut")]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with forked.Popen(command, cwd=data, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "three\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate("go on\n")
    assert process.returncode == 130
    assert said.endswith("cut: stopped; the same command with --resume continues\n")
    # The line is printed after the trainer has checked for the interrupt, so it makes one more step.
    assert (tmp_path / "cut" / "seed-0" / "checkpoints" / "step-4").is_dir()
    assert not (tmp_path / "cut" / "seed-0" / "ranker.json").exists()
    assert train(*flags, tmp_path / "cut", "--resume").exit_code == 0
    assert train(*flags, tmp_path / "whole").exit_code == 0
    cut, whole = (tmp_path / name / "seed-0" / "model.safetensors" for name in ("cut", "whole"))
    assert cut.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "train: give either --from, or --family with --backbone"),
        ((*START, "--family", "maxp"), "--family: is only for a new ranker; --from has its own"),
        (("--family", "maxp"), "train: give either --from, or --family with --backbone"),
        ((*START, "--option", "pooling=mean"), "--option: is only for a new ranker; --from has its own"),
        ((*START, "--projection", 8), "--projection: is only for a new ranker; --from has its own"),
        (
            (*START, "--triples", "triples.tsv", "--loss", "contrastive", "--batch-size", 8),
            "loss is contrastive; it must be another one: maxp reads a document together with its query",
        ),
        (
            (*START, "--triples", "triples.tsv", "--loss", "kl"),
            "negatives is 1; it must be at least 2 for kl",
        ),
        ((*START, "--triples", "triples.tsv", "--kl-scores", "raw"), "--kl-scores: needs --loss kl"),
        ((*MULTI_VECTOR, "--triples", "triples.tsv", "--margin", 2), "--margin: needs --loss hinge"),
        (
            (*MULTI_VECTOR, "--triples", "triples.tsv", "--batch-size", 1),
            "batch_size is 1; it must be at leas",
        ),
        (START, "train: give one of --queries with --qrels, --candidates and --collection; --triples; "),
        ((*START, *JUDGED, "--triples", "triples.tsv"), "train: give one of --queries with --qrels, "),
        ((*START, *JUDGED), "--queries: needs --collection"),
        ((*START, "--queries", "train.tsv"), "--queries: needs --qrels, --candidates, --collection"),
        ((*START, *JUDGED, *COLLECTION, *DEV[:2]), "--dev-queries: needs --dev-qrels, --dev-candidates"),
        ((*START, "--triples", "triples.tsv", *DEV), "--dev-queries: needs --collection"),
        ((*START, *JUDGED, *COLLECTION, *DEV, "--folds", 4), "--folds: divides the queries of --queries; "),
        ((*START, "--triples", "triples.tsv", "--seeds", "1,1"), "--seeds 1,1: a seed appears twice"),
        ((*START, *JUDGED, *COLLECTION, "--folds", 2), "folds is 2; it must be at least 3 and at most the 8"),
        ((*START, "--triples", "triples.tsv", "--epochs", 0), "epochs is 0; it must be at least 1"),
        ((*START, "--triples", "triples.tsv", "--patience", 1), "patience is 1; without validation queries"),
        (
            (*START, "--triples", "triples.tsv", "--loss", "margin-mse"),
            "loss is margin-mse, which needs a te",
        ),
        ((*START, "--triples", "triples.tsv", "--negatives", 2), "negatives is 2; --triples have 1 per line"),
        ((*START, "--examples", "examples.jsonl", "--negatives-from", 5), "--negatives-from: needs --cand"),
        (
            (*START, "--triples", "triples.tsv", *COLLECTION),
            "--collection: needs --queries or --dev-queries",
        ),
        (
            (*START, "--triples", "triples.tsv", "--query-field", "title"),
            "--query-field: needs --queries or",
        ),
        ((*START, *JUDGED, *COLLECTION, "--measure", "AP"), "--measure: needs --dev-queries or --folds"),
        ((*START, *JUDGED, *COLLECTION, "--dev-depth", 5), "--dev-depth: needs --dev-queries or --folds"),
        (
            (*START, "--triples", "triples.tsv", "--margin", 2, "--loss", "ranknet"),
            "--margin: needs --loss hinge",
        ),
        ((*START, "--triples", "triples.tsv", "--lora-alpha", 8), "--lora-alpha: needs --lora-rank"),
        (
            (*START, *JUDGED, "--collection", "-", *DEV),
            "--collection -: is read more than once; it cannot be",
        ),
        (
            (*START, *JUDGED[:4], "--candidates", "-", *COLLECTION, "--folds", 4),
            "--candidates -: is read more than once; it cannot be",
        ),
        ((*START, "--triples", "docs.jsonl"), "docs.jsonl:1: "),
        ((*START, "--triples", "none.tsv"), "none.tsv: No such file or directory"),
        # This error is reported before the data is read, which is wrong, too.
        (("--from", "nowhere", "--triples", "none.tsv"), "nowhere is neither a folder nor a model from"),
        ((*START, "--triples", "triples.tsv", "--config", "none.yaml"), "none.yaml is missing"),
        (
            (*START, *JUDGED, "--collection", "none.jsonl", *DEV, "--measure", "best"),
            "measure 'best': ",
        ),
        ((*START, "--triples", "triples.tsv", "--trained-layers", 9), "trained_layers is 9; it must be at m"),
    ],
)
def test_problems_end_with_one_line(
    train: Farrank, tmp_path: Path, flags: tuple[object, ...], message: str
) -> None:
    outcome = train(*flags, "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    last = outcome.err.splitlines()[-1]
    assert last.startswith(f"farrank: {message}")
    assert not (tmp_path / "out").exists()
