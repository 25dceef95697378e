"""Warms up a ranker beside calls, in steps so short that a call hardly waits for one."""

import time
from collections.abc import Iterator

from farrank_runtimes.loaded_runtime import even_batch
from farrank_server.engine.loaded.ranker import LoadedRanker

# The tokens of the steps. The first one sets up the kernels; the others are as fast as short batches are.
# Each takes some milliseconds on a CPU with a small backbone.
STEPS_TOKENS = (16, 64, 64)


def warm_up_in_turns(ranker: LoadedRanker) -> Iterator[None]:
    """Run short inputs, one with each step, measure the speed, and check that the ranker scores.

    A CPU needs no more: its threads and their memory are those of the device's thread, which has run full
    batches before. The speed is a little too low, since inputs are short.
    Raises: ConfigError if a score is not finite; the errors of `Runtime.encode`.
    """
    fastest = 0.0
    for tokens in STEPS_TOKENS:
        (whole,) = even_batch(1, min(tokens, ranker.reader.max_input_tokens))
        began_s = time.perf_counter()
        ranker.runtime.encode([whole]).rows()
        fastest = max(fastest, whole.tokens / (time.perf_counter() - began_s))
        yield
    ranker.speeds.encoding.replace(fastest)
    ranker.check_score(ranker.runtime)
