"""sentence-transformers' CrossEncoder.predict, in a process of its own that `predict_process` runs."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from farrank_bench.calls import BenchCall
from farrank_bench.contenders.rounds import ContenderFailed, Scored

PASS_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Predict:
    """A running process. One pass is one call of `predict` with all pairs."""

    process: subprocess.Popen[str]
    calls: Sequence[BenchCall]

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
def predicting(model: Path, calls: Sequence[BenchCall], threads: int) -> Iterator[Predict]:
    """Start the process; it is ended when the block is left."""
    command = [sys.executable, "-m", "farrank_bench.contenders.predict_process", str(model), str(threads)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Predict(process, calls)
        finally:
            process.kill()
