"""sentence-transformers' CrossEncoder.predict, in a process of its own.

The process runs this file as a program: it reads pairs from standard input, a JSON array a line, predicts,
and prints seconds and scores.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from farrank_bench.contenders.rounds import ContenderFailed, Scored
from farrank_loadtest.workloads import Call

PASS_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Predict:
    """A running process. One pass is one call of `predict` with all pairs."""

    process: subprocess.Popen[str]
    calls: Sequence[Call]

    def score(self) -> Scored:
        """Score all pairs; the process times itself, without the way of the texts to it.

        Raises: ContenderFailed if it ends, or takes too long.
        """
        asked, answered = self.process.stdin, self.process.stdout
        if asked is None or answered is None:
            raise AssertionError("the process was started with pipes")
        try:
            asked.write(json.dumps([(call.query, text) for call in self.calls for text in call.texts]) + "\n")
            asked.flush()
        except BrokenPipeError as error:
            raise ContenderFailed("sentence-transformers' process ended; its words are above") from error
        if not select.select([answered], [], [], PASS_TIMEOUT_S)[0]:
            raise ContenderFailed(f"sentence-transformers gave no scores in {PASS_TIMEOUT_S:.0f} s")
        line = answered.readline()
        if not line:
            raise ContenderFailed("sentence-transformers' process ended; its words are above")
        answer = json.loads(line)
        left = iter(answer["scores"])
        scores = tuple(tuple(islice(left, len(call.texts))) for call in self.calls)
        return Scored(answer["seconds"], sum(map(len, scores)), scores)


@contextmanager
def predicting(model: Path, calls: Sequence[Call], threads: int) -> Iterator[Predict]:
    """Start the process; it is ended when the block is left."""
    command = [sys.executable, "-m", "farrank_bench.contenders.predict", str(model), str(threads)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Predict(process, calls)
        finally:
            process.kill()


def answer_pairs(folder: str, threads: int) -> None:
    """Load the model in fp32 on the CPU and answer until standard input ends."""
    if not Path(folder).is_dir():
        # Said before packages are imported for seconds; a name would be looked up on the hub.
        sys.exit(f"{folder}: no such folder")
    # Imported here: the benchmark itself needs none of them.
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(threads)
    model = CrossEncoder(folder, device="cpu")
    for line in sys.stdin:
        pairs = json.loads(line)
        started_s = time.perf_counter()
        scores = model.predict(pairs, show_progress_bar=False)
        seconds = time.perf_counter() - started_s
        print(json.dumps({"seconds": seconds, "scores": scores.tolist()}), flush=True)


if __name__ == "__main__":
    answer_pairs(sys.argv[1], int(sys.argv[2]))
