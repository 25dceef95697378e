"""Trainings that are killed at a given moment, and trainings that resume them, in a process that forks each.

torch cannot train in a process whose parent has trained, so the forking process only imports.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from farrank_rankers.files.open import open_ranker
from farrank_training import checkpoints, training_run
from farrank_training.configuration import TrainingConfig
from farrank_training.groups import Group
from support.training_groups import Groups, Texts, triples, validation

CONFIG = TrainingConfig(
    accumulation=2,
    epochs=2,
    checkpoint_every=2,
    validate_every=3,
    log_every=1,
    learning_rate=1e-2,
    backbone_learning_rate=1e-3,
)


def killed() -> None:
    """End at once, as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, original: Callable[..., Any], first: Callable[..., Any]) -> Callable[..., Any]:
    """Call `original`; at the call `number`, call `first` instead and kill the process."""
    calls = 0

    def called(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            first(*arguments, **keywords)
            killed()
        return original(*arguments, **keywords)

    return called


class Read(Groups):
    """Groups. The process is killed when it reads the 13th."""

    def group(self, index: int, epoch: int) -> Group:
        if len(self.asked) == 12:
            killed()
        return super().group(index, epoch)


class Lost(Texts):
    """Texts. The process is killed when it reads the 20th."""

    reads = 0

    def text(self, doc_id: str) -> str:
        self.reads += 1
        if self.reads == 20:
            killed()
        return super().text(doc_id)


def half(ranker: Any, folder: Path) -> None:
    """Write a truncated file."""
    (folder / "model.safetensors").write_bytes(b"\x40\x00")


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing before the process is killed."""


def prepare(moment: str) -> tuple[Groups, Any]:
    """Prepare groups and validation so that the next training is killed at a moment."""
    groups: Groups = Groups(triples(8))
    dev = validation()
    patches: dict[str, tuple[Any, str, int, Callable[..., Any]]] = {
        "writing": (checkpoints, "write_weights", 3, half),
        "placing": (checkpoints, "put_in_place", 3, nothing),
        # The first checkpoint is deleted once the second is in its place.
        "deleting": (shutil, "rmtree", 4, lambda path, **_: next(Path(path).iterdir()).unlink()),
        "keeping": (checkpoints, "forget_best", 2, nothing),
        "saving": (training_run, "save_ranker", 1, half),
        "reporting": (training_run, "_clean", 1, nothing),
    }
    if moment == "reading":
        groups = Read(groups.groups)
    elif moment == "validating":
        dev.texts = Lost(dev.texts)  # type: ignore[arg-type]  # they are texts from memory
    elif moment in patches:
        module, name, number, first = patches[moment]
        setattr(module, name, at_call(number, getattr(module, name), first))
    return groups, dev


def run(artifact: Path, folder: Path, moment: str, *, resume: bool) -> None:
    """Train in this process."""
    groups, dev = prepare(moment)
    training_run.train(
        open_ranker(artifact), groups, CONFIG, folder, seed=7, validation=dev, resume=resume, cpu=True
    )


def forked(*arguments: Any, **keywords: Any) -> int:
    """Run a function in a child. Returns the number of the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            run(*arguments, **keywords)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the training failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main(artifact: str, out: str, *moments: str) -> None:
    """Train until the kill at each moment, then resume the training."""
    torch.set_num_threads(1)
    for moment in moments:
        folder = Path(out, moment)
        ended_by = forked(Path(artifact), folder, moment, resume=False)
        assert ended_by == (0 if moment == "never" else signal.SIGKILL), f"{moment}: ended by {ended_by}"
        if ended_by:
            forked(Path(artifact), folder, "never", resume=True)
