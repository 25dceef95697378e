"""Checkpoints from which an interrupted run goes on: each is complete or absent.

One folder holds a run's checkpoints, `step-N` each, and the best weights so far as `best-N.safetensors`.
A checkpoint has another name until all of it is on the disk: a process may be killed at any moment.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from farrank_rankers.files import weights
from farrank_rankers.files.weights import FILE, distinct, fill, read_weights
from farrank_rankers.ranker import Ranker
from farrank_training.errors import TrainingError

STATE = "trainer_state.json"
_WHOLE = re.compile(r"step-([0-9]+)")
_BEST = re.compile(r"best-([0-9]+)\.safetensors")


def step_folder(folder: Path, step: int) -> Path:
    """Give the path of a step's checkpoint."""
    return folder / f"step-{step}"


def last_checkpoint(folder: Path) -> Path | None:
    """Find the newest whole checkpoint of a run, None if there is none."""
    steps = [int(found[1]) for path in folder.glob("step-*") if (found := _WHOLE.fullmatch(path.name))]
    return step_folder(folder, max(steps)) if steps else None


def staged(folder: Path) -> Path:
    """Make the empty folder in which the next checkpoint is written."""
    path = folder / "unfinished"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def put_in_place(staging: Path, step: int) -> None:
    """Make a written checkpoint the run's newest, and delete earlier ones.

    Raises: TrainingError if the checkpoint cannot be put on the disk.
    """
    folder = staging.parent
    try:
        for path in staging.iterdir():
            _flush(path)
        staging.rename(step_folder(folder, step))
        _flush(folder)
        for path in folder.glob("step-*"):
            if path != step_folder(folder, step):
                # If the process is killed here, a half-deleted folder must not be taken for a checkpoint.
                shutil.rmtree(folder / "old", ignore_errors=True)
                shutil.rmtree(path.rename(folder / "old"))
    except OSError as error:
        raise _not_written(staging, error) from error


def write_text(path: Path, text: str) -> None:
    """Replace a file's content atomically.

    Raises: TrainingError if it cannot be written.
    """
    _replace(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def write_weights(ranker: Ranker, folder: Path) -> None:
    """Write all weights of a ranker into a folder; low-rank differences stay separate tensors.

    Raises: WeightsError if they cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in distinct(ranker).items()}
    weights.write_weights(tensors, folder / FILE)


def read_into(ranker: Ranker, folder: Path) -> None:
    """Copy a checkpoint's weights into the ranker, which must be built as at the checkpoint.

    Raises: WeightsError if the weights are damaged or another ranker's.
    """
    fill(ranker, read_weights(folder), folder / FILE)


def keep_best(folder: Path, step: int) -> None:
    """Copy the weights of this step's checkpoint to `best-N.safetensors`.

    Raises: TrainingError if the file cannot be written.
    """
    newest = step_folder(folder, step) / FILE

    def copied(unfinished: Path) -> None:
        try:
            os.link(newest, unfinished)
        except OSError:  # a file system without links
            shutil.copyfile(newest, unfinished)

    _replace(folder / f"best-{step}.safetensors", copied)


def forget_best(folder: Path, but: int) -> None:
    """Delete the best weights of all steps but this one."""
    for path in folder.glob("best-*.safetensors"):
        if (found := _BEST.fullmatch(path.name)) and int(found[1]) != but:
            path.unlink(missing_ok=True)


def read_best(ranker: Ranker, folder: Path, step: int) -> None:
    """Copy the best weights into the ranker. Raises: WeightsError if they are damaged."""
    path = folder / f"best-{step}.safetensors"
    fill(ranker, weights.read_tensors(path), path)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        write(unfinished)
        _flush(unfinished)
        unfinished.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error


def _flush(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_written(path: Path, error: OSError) -> TrainingError:
    return TrainingError(f"{path} cannot be written: {error.strerror or error}")
