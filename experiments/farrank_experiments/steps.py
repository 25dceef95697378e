"""Long steps, each kept in its folder: a finished and unchanged step does not run again."""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farrank_experiments.settings import digest_of
from farrank_training.errors import TrainingError

_BEGUN = "begun.json"
_DONE = "done.json"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `run` fills its folder; the result depends on `given` and the steps in `after` alone.

    An interrupted step finds its files in the folder and goes on from them if it can.
    """

    name: str
    title: str
    run: Callable[[Path], None]
    given: Any
    after: Sequence["Step"] = ()

    @property
    def digest(self) -> str:
        """Hash of its settings and of the steps before it."""
        return digest_of(self.name, self.given, [step.digest for step in self.after])


class StepFolders:
    """The folder of all steps, made if it is missing. Raises: OSError if it cannot be made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def of(self, step: Step) -> Path:
        """Give the folder of a step's results."""
        return self.root / step.name

    def is_done(self, step: Step) -> bool:
        """Whether the step was finished, with the same settings after the same steps."""
        return _digest(self.of(step) / _DONE) == step.digest

    def seconds(self, step: Step) -> float:
        """Give the duration of a finished step, without the time before an interruption."""
        said = json.loads((self.of(step) / _DONE).read_text(encoding="utf-8"))
        return float(said["seconds"])

    def do(self, steps: Iterable[Step], tell: Callable[[str], None]) -> None:
        """Run the steps that are not done, in order.

        Raises: TrainingError if a folder holds other files; also what a step raises.
        """
        every = list(steps)
        for number, step in enumerate(every, start=1):
            head = f"[{number}/{len(every)}] {step.title}"
            if self.is_done(step):
                tell(f"{head}: already done")
                continue
            folder = self._begin(step)
            tell(f"{head} …")
            start_s = time.monotonic()
            step.run(folder)
            took_s = time.monotonic() - start_s
            _write(folder / _DONE, {"digest": step.digest, "seconds": round(took_s, 1)})
            tell(f"{head}: {_duration(took_s)}")

    def _begin(self, step: Step) -> Path:
        """Give the step's folder, empty unless the same step was interrupted in it."""
        folder = self.of(step)
        if folder.exists() and _digest(folder / _BEGUN) != step.digest:
            if any(folder.iterdir()) and not (folder / _BEGUN).is_file():
                raise TrainingError(f"{folder}: holds other files; name another --work folder")
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / _BEGUN, {"digest": step.digest})
        return folder


def _digest(path: Path) -> str | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return said.get("digest") if isinstance(said, dict) else None


def _write(path: Path, values: dict[str, Any]) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(values) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
