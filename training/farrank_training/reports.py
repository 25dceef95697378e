"""Reports of a run while it trains: progress for people, log.jsonl, and TensorBoard's events."""

import json
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from farrank_training.ranking_trainer import RankingTrainer
from farrank_trec.measures import mean_name

LOG = "log.jsonl"


class Watcher(Protocol):
    """Receives a run's progress: a count from `done` to `total`."""

    def begin(self, what: str, total: int | None = None, *, done: int = 0) -> None:
        """Begin to count `what`."""
        ...

    def __call__(self, count: int, note: str = "") -> None:
        """Take the count so far and a note."""
        ...

    def end(self) -> None:
        """Stop counting."""
        ...


class SilentWatcher:
    """A watcher that ignores progress."""

    def begin(self, what: str, total: int | None = None, *, done: int = 0) -> None:
        """Do nothing."""

    def __call__(self, count: int, note: str = "") -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Interrupts(Protocol):
    """Requests to end the run. Within `held`, a request only sets `came`, which the run polls."""

    came: bool

    def held(self) -> AbstractContextManager[None]:
        """Let the run end by itself, at a point where nothing is lost."""
        ...


class NoInterrupts:
    """A run that nobody interrupts."""

    came = False

    def held(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()


class Reports(TrainerCallback):  # type: ignore[misc]  # untyped
    """Reports a run to a watcher and in the run's folder; the first of several processes writes."""

    def __init__(self, folder: Path, name: str, watcher: Watcher) -> None:
        self.folder, self.name, self.watcher = folder, name, watcher
        self.trainer: RankingTrainer | None = None
        self._began_s = time.monotonic()
        self._documents = 0
        self._loss = self._measure = ""
        self._events: Any = None

    @property
    def documents_per_s(self) -> float:
        """Documents that all processes read per second since this process began training."""
        assert self.trainer is not None
        read: int = (self.trainer.documents - self._documents) * self.trainer.args.world_size
        return read / max(time.monotonic() - self._began_s, 1e-9)

    def begin_steps(self, state: TrainerState) -> None:
        """Count steps, from the start or after a validation."""
        self.watcher.begin(f"steps of {self.name}", state.max_steps, done=state.global_step)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Begin the progress, the log and the events."""
        assert self.trainer is not None
        self._began_s, self._documents = time.monotonic(), self.trainer.documents
        self._note_measure(state)
        self.begin_steps(state)
        if args.should_save:
            from torch.utils.tensorboard import SummaryWriter

            events: Any = SummaryWriter
            self._events = events(str(self.folder / "tensorboard"), purge_step=state.global_step + 1)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Report the step, the loss, the measure and the rate."""
        rate = f"{self.documents_per_s:,.1f} documents/s"
        self.watcher(state.global_step, ", ".join(filter(None, (self._loss, self._measure, rate))))

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Write a line of log.jsonl, and the same values for TensorBoard."""
        entry = state.log_history[-1]
        if "train_runtime" in entry:  # the Trainer's summary; training.json has these values
            return
        if "loss" in entry:
            self._loss = f"loss {entry['loss']:.4f}"
            entry["documents_per_s"] = round(self.documents_per_s, 2)
        self._note_measure(state)
        if not args.should_save:
            return
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        if self._events is not None:
            for name, value in entry.items():
                if name != "step":
                    self._events.add_scalar(name, value, entry["step"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Close TensorBoard's file."""
        self.close()

    def close(self) -> None:
        """End the progress and the events."""
        self.watcher.end()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _note_measure(self, state: TrainerState) -> None:
        assert self.trainer is not None
        if validations := self.trainer.validations:
            name = mean_name(self.trainer.config.measure)
            best = f" (best {state.best_metric:.4f} at step {state.best_global_step})"
            self._measure = f"{name} {validations[-1][1]:.4f}{best}"


def rewrite_log(folder: Path, state: Path) -> None:
    """Remove the lines of log.jsonl that are newer than the checkpoint from which a run goes on."""
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    lines = [json.dumps(entry) + "\n" for entry in history if "train_runtime" not in entry]
    (folder / LOG).write_text("".join(lines), encoding="utf-8")
