"""sentence-transformers' CrossEncoder.predict, in a process of its own."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from farrank_bench.rounds import Child, Scored, child
from farrank_loadtest.workloads import Call


@dataclass(frozen=True, slots=True)
class Predict:
    """A running process. One pass is one call of `predict` with all pairs."""

    process: Child
    calls: Sequence[Call]

    def score(self) -> Scored:
        """Score all pairs; the process times itself, without the way of the texts to it.

        Raises: ContenderFailed if it ends, or takes too long.
        """
        seconds, scored = self.process.ask([(call.query, text) for call in self.calls for text in call.texts])
        left = iter(scored)
        scores = tuple(tuple(islice(left, len(call.texts))) for call in self.calls)
        return Scored(seconds, len(scored), scores)


@contextmanager
def predicting(model: Path, calls: Sequence[Call], threads: int) -> Iterator[Predict]:
    """Start the process; it is ended when the block is left."""
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with child("sentence-transformers", answer_pairs, str(model), threads, **environment) as process:
        yield Predict(process, calls)


def answer_pairs(asked: Connection, folder: str, threads: int) -> None:
    """Load the model in fp32 on the CPU; answer each list of pairs with seconds and scores."""
    if not Path(folder).is_dir():
        # Said before packages are imported for seconds; a name would be looked up on the hub.
        sys.exit(f"{folder}: no such folder")
    # Imported here: the benchmark itself needs none of them.
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(threads)
    model = CrossEncoder(folder, device="cpu")
    while True:
        pairs = asked.recv()
        started_s = time.perf_counter()
        scores = model.predict(pairs, show_progress_bar=False)
        asked.send((time.perf_counter() - started_s, scores.tolist()))
