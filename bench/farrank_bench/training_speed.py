"""Training speed against a bare loop and sentence-transformers: `python -m farrank_bench.training_speed`.

All three train all-MiniLM-L6-v2 as a cross-encoder on the same groups with RankNet's loss in fp32. A group is
a relevant document and another one, of one input each. Each trainer has its own process, and they take turns.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from farrank_bench.collection_memory import peak_mib
from farrank_bench.corpus_calls import encoder_inputs, make_calls
from farrank_bench.exporting import write_cross_encoder
from farrank_bench.report import Command, Heading, Measure, Row, spread
from farrank_bench.rounds import Child, Contender, PassResult, child, measure_rounds, whole
from farrank_loadtest.workloads import Call
from farrank_rankers.files.open import open_ranker
from farrank_runtimes.cores import usable_cores
from farrank_training.configuration import TrainingConfig
from farrank_training.losses import ranknet
from farrank_training.ranking_trainer import RankingTrainer
from farrank_training.training_set import Group

BARE, OURS, PEER = "the bare loop", "farrank", "sentence-transformers"
OVER_BARE, OVER_PEER = 0.85, 1.0
PACKAGES = ("farrank", "torch", "transformers", "accelerate", "sentence-transformers", "tokenizers")

# The groups of an encoded batch, which are also those of a step.
BATCH = 8
RATE = 1e-5


class Groups:
    """A training set of texts in memory."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.checksums: Mapping[str, str] = {}
        self.notes: Sequence[str] = ()
        self._groups = [Group(str(n), call.query, tuple(call.texts)) for n, call in enumerate(calls)]

    def __len__(self) -> int:
        return len(self._groups)

    def group(self, index: int, epoch: int) -> Group:
        """Return a group. It is the same in every epoch."""
        return self._groups[index]

    def of_seed(self, seed: int) -> "Groups":
        """Return this set, which draws nothing at random."""
        return self


def our_trainer(artifact: str, calls: Sequence[Call], folder: Path) -> RankingTrainer:
    """Make a trainer of one epoch. It writes only the last checkpoint."""
    config = TrainingConfig(
        loss="ranknet",
        batch_size=BATCH,
        accumulation=1,
        backbone_learning_rate=RATE,
        learning_rate=RATE,
        weight_decay=0.0,
        checkpoint_every=len(calls),
    )
    return RankingTrainer(open_ranker(Path(artifact)), Groups(calls), config, folder, cpu=True)


def answer_ours(asked: Connection, artifact: str, calls: Sequence[Call], threads: int) -> None:
    """Answer each question with the seconds of an epoch of Farrank's trainer, and the peak memory."""

    def epoch(folder: Path) -> Callable[[], None]:
        return our_trainer(artifact, calls, folder).train_on

    answer_with(asked, epoch, threads)


def answer_bare(asked: Connection, artifact: str, calls: Sequence[Call], threads: int) -> None:
    """Answer with the figures of a loop of only forward, backward and optimizer, on batches made before."""

    def epoch(folder: Path) -> Callable[[], None]:
        trainer = our_trainer(artifact, calls, folder)
        ranker: Any = trainer.model.train()
        batches: list[Any] = list(trainer.get_train_dataloader())
        optimizer = torch.optim.AdamW(ranker.parameters(), lr=RATE, weight_decay=0.0, fused=True)

        def run() -> None:
            for batch in batches:
                scores = ranker(batch["batch"], batch["counts"], batch["query"])
                loss: Any = ranknet(scores.view(len(batch["sizes"]), -1)).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        return run

    answer_with(asked, epoch, threads)


def answer_peer(asked: Connection, model: str, calls: Sequence[Call], threads: int) -> None:
    """Answer with the figures of sentence-transformers' CrossEncoderTrainer."""
    from datasets import Dataset  # type: ignore[import-untyped]
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import RankNetLoss

    columns = {
        "query": [call.query for call in calls],
        "docs": [list(call.texts) for call in calls],
        "labels": [[1.0] + [0.0] * (len(call.texts) - 1) for call in calls],
    }

    def epoch(folder: Path) -> Callable[[], Any]:
        arguments = CrossEncoderTrainingArguments(
            output_dir=str(folder),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            max_grad_norm=0.0,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        encoder = CrossEncoder(model, device="cpu", num_labels=1)
        trainer = CrossEncoderTrainer(
            encoder, arguments, Dataset.from_dict(columns), loss=RankNetLoss(encoder)
        )
        train: Callable[[], Any] = trainer.train
        return train

    answer_with(asked, epoch, threads)


def answer_with(asked: Connection, epoch: Callable[[Path], Callable[[], Any]], threads: int) -> None:
    """Answer each question with the seconds of an epoch, without those for making models and batches."""
    torch.set_num_threads(threads)
    while True:
        asked.recv()
        with tempfile.TemporaryDirectory() as folder:
            run = epoch(Path(folder) / "run")
            started_s = time.perf_counter()
            run()
            asked.send((time.perf_counter() - started_s, peak_mib()))


def sections(groups: int, rounds: int) -> Iterator[tuple[str, Measure]]:
    """Write the model in both forms, start the processes, and let them take turns."""
    threads = usable_cores()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made = write_cross_encoder(Path(folder))
        calls = make_calls(made.ranker.reader, groups, 2, seed=5, pairs=True)
        tokens = sum(each.tokens for each in encoder_inputs(made.ranker.reader, calls))
        settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        answers: Mapping[str, tuple[Callable[..., None], Path]] = {
            BARE: (answer_bare, made.artifact),
            OURS: (answer_ours, made.artifact),
            PEER: (answer_peer, made.transformers),
        }
        processes = {
            name: stack.enter_context(child(name, answer, str(model), calls, threads, **settings))
            for name, (answer, model) in answers.items()
        }
        yield "Training", lambda: in_turns(processes, tokens, rounds)


def in_turns(processes: dict[str, Child], tokens: int, rounds: int) -> list[Row]:
    """Let all trainers train on the same tokens in each round."""
    peaks: dict[str, float] = {}

    def contender(name: str) -> Contender:
        def train() -> PassResult:
            seconds, peaks[name] = processes[name].ask()
            return PassResult(seconds, tokens)

        return train

    found = measure_rounds({name: contender(name) for name in processes}, rounds)
    rows = [found.speed_row(name, f"tokens/s, {name}") for name in processes]
    rows += [
        found.ratio_row(OURS, other, f"{OURS} over {other}", limit)
        for other, limit in ((BARE, OVER_BARE), (PEER, OVER_PEER))
        if other in processes
    ]
    rows += [Row(f"peak memory, MiB, {name}", spread([peak], ".0f")) for name, peak in peaks.items()]
    return whole(rows, found)


def main() -> int:
    """Print the table."""
    command = Command("farrank_bench.training_speed", __doc__)
    command.options.add_argument("--groups", type=int, default=64, help="groups of an epoch (%(default)s)")
    command.options.add_argument("--rounds", type=int, default=3, help="epochs of each trainer (%(default)s)")
    given = command.parse(None)
    notes = (
        f"all-MiniLM-L6-v2 as a cross-encoder, RankNet in fp32, AdamW; {given.groups} groups of 2 documents, "
        f"pairs of 60 to 512 tokens, {BATCH} groups a step; medians of rounds (smallest to largest)"
    )
    heading = Heading("Training against a bare loop and sentence-transformers", notes, PACKAGES)
    return command.report(heading, sections(given.groups, given.rounds), given.out)


if __name__ == "__main__":
    sys.exit(main())
