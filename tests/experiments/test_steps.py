"""Steps run once, run again when their inputs change, and resume where they were interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from farrank_experiments.steps import Step, StepFolders
from farrank_training.errors import TrainingError


class Done:
    """Steps that write their arguments, and record their order."""

    def __init__(self, root: Path) -> None:
        self.folders = StepFolders(root)
        self.ran: list[str] = []
        self.told: list[str] = []

    def step(self, name: str, given: int, *after: Step) -> Step:
        def run(folder: Path) -> None:
            self.ran.append(name)
            (folder / "out").write_text(str(given))

        return Step(name, name.title(), run, {"given": given}, after)

    def do(self, *steps: Step) -> list[str]:
        self.ran.clear()
        self.folders.do(steps, self.told.append)
        return list(self.ran)


@pytest.fixture
def done(tmp_path: Path) -> Done:
    return Done(tmp_path / "work")


def test_finished_steps_do_not_run_again(done: Done) -> None:
    first = done.step("data", 1)
    second = done.step("train", 1, first)

    assert done.do(first, second) == ["data", "train"]
    assert done.do(first, second) == []
    assert done.told[-1] == "[2/2] Train: already done"
    assert done.folders.seconds(second) >= 0


def test_a_changed_step_is_done_again_and_all_that_follow_it(done: Done) -> None:
    def steps(of_data: int, of_training: int) -> list[Step]:
        data = done.step("data", of_data)
        training = done.step("train", of_training, data)
        return [data, done.step("other", 1, data), training, done.step("ask", 1, training)]

    done.do(*steps(1, 1))

    assert done.do(*steps(1, 2)) == ["train", "ask"]
    assert done.do(*steps(2, 2)) == ["data", "other", "train", "ask"]
    assert (done.folders.root / "train" / "out").read_text() == "2"


def test_a_step_that_was_cut_off_finds_what_it_left_and_a_changed_one_does_not(done: Done) -> None:
    found: list[bool] = []

    def run(folder: Path) -> None:
        found.append((folder / "half").exists())
        (folder / "half").write_text("")
        if len(found) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done.do(Step("train", "Train", run, 1))
    assert not done.folders.is_done(Step("train", "Train", run, 1))
    done.do(Step("train", "Train", run, 1))
    done.do(Step("train", "Train", run, 2))

    assert found == [False, True, False]


def test_a_folder_of_somebody_elses_is_left_alone(done: Done) -> None:
    (done.folders.root / "data").mkdir()
    (done.folders.root / "data" / "thesis.txt").write_text("years of work")

    with pytest.raises(TrainingError, match="data: holds other files; name another --work folder"):
        done.do(done.step("data", 1))
    assert (done.folders.root / "data" / "thesis.txt").exists()
