"""The benchmark of training with a tiny ranker. Each contender runs on a thread instead of in a process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path

from farrank_bench import training_speed
from farrank_bench.corpus_calls import call_of
from farrank_bench.rounds import Child
from farrank_bench.training_speed import BARE, BATCH, OURS, Groups, in_turns, our_trainer

CALLS = [call_of(f"query {n}", [f"a relevant text {n}", "another " * n]) for n in range(1, BATCH + 3)]


@contextmanager
def started(name: str, answer: Callable[..., None], artifact: Path) -> Iterator[Child]:
    ours, theirs = Pipe()

    def answer_all() -> None:
        with theirs, suppress(EOFError):
            answer(theirs, str(artifact), CALLS, 1)

    thread = threading.Thread(target=answer_all)
    thread.start()
    with ours:
        yield Child(name, ours)
    thread.join()


def test_the_bare_loop_and_the_trainer_take_turns(tiny_rankers: dict[str, Path]) -> None:
    artifact = tiny_rankers["cross-encoder"]
    with (
        started(BARE, training_speed.answer_bare, artifact) as bare,
        started(OURS, training_speed.answer_ours, artifact) as ours,
    ):
        rows = {row.what: row for row in in_turns({BARE: bare, OURS: ours}, 100, rounds=1)}
    assert float(rows[f"tokens/s, {OURS}"].measured.split()[0]) > 0
    assert rows[f"{OURS} over {BARE}"].reached is not None
    assert float(rows[f"peak memory, MiB, {BARE}"].measured.split()[0]) > 100


def test_the_bare_loop_gets_the_trainers_own_batches(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    trainer = our_trainer(str(tiny_rankers["cross-encoder"]), CALLS, tmp_path)
    batches = list(trainer.get_train_dataloader())
    assert [len(batch["sizes"]) for batch in batches] == [BATCH, 2]
    assert sum(len(batch["counts"]) for batch in batches) == 2 * len(Groups(CALLS))
