"""sentence-transformers' CrossEncoder.predict, in a process of its own."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from farrank_bench.rounds import Contender, Scored, child
from farrank_loadtest.workloads import Call


@contextmanager
def predicting(model: Path, calls: Sequence[Call], threads: int) -> Iterator[Contender]:
    """Start the process, which is ended when the block is left; a pass is one `predict` with all pairs.

    The process times itself, without the way of the texts to it.
    """
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with child("sentence-transformers", answer_pairs, str(model), threads, **environment) as process:

        def score() -> Scored:
            seconds, found = process.ask([(call.query, text) for call in calls for text in call.texts])
            left = iter(found)
            return Scored(seconds, len(found), tuple(tuple(islice(left, len(call.texts))) for call in calls))

        yield score


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
