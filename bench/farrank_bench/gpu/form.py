"""One way to encode the same inputs: packed, or padded in some order."""

import time
from collections.abc import Sequence

from farrank_bench.contenders.interface import ContenderFailed, Scored
from farrank_bench.gpu.batches import batches_in_order
from farrank_bench.rounds import Rounds
from farrank_bench.rows import Row, not_measured, spread
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.interface import Encoding, OutOfMemory, Runtime


class Form:
    """A contender that encodes inputs in their order, `passes` times in a row, batch behind batch.

    As a server does, it halves batches that do not fit; `max_tokens` says where that ended. Rounds call
    documents what are inputs here.
    """

    def __init__(
        self, runtime: Runtime, inputs: Sequence[EncoderInput], passes: int, *, padded: bool
    ) -> None:
        self._runtime = runtime
        self._inputs = inputs
        self._passes = passes
        self._padded = padded
        self.max_tokens = runtime.capabilities().max_batch_tokens

    def score(self) -> Scored:
        """Encode everything. Raises: ContenderFailed."""
        while True:
            batches = list(batches_in_order(self._inputs, self.max_tokens, padded=self._padded))
            try:
                started_s = time.perf_counter()
                for _ in range(self._passes):
                    encode_in_turn(self._runtime, batches)
                return Scored(time.perf_counter() - started_s, self._passes * len(self._inputs))
            except OutOfMemory as error:
                fullest = max(map(len, batches))
                if fullest == 1:
                    raise ContenderFailed(f"one input alone does not fit: {error}") from error
                self.max_tokens //= 2
            except TimeoutError:
                raise  # the section's time is over, and with it every form's
            except Exception as error:
                raise ContenderFailed(f"{type(error).__name__}: {error}") from error


def speed_row(name: str, form: Form, found: Rounds) -> Row:
    """Write down a form's speed, or why there is none."""
    what = f"pairs/s, {name}"
    if name in found.failed:
        return not_measured(what, found.failed[name])
    return Row(f"{what}, batches of up to {form.max_tokens:,} tokens", spread(found.speeds[name], ".1f"))


def encode_in_turn(runtime: Runtime, batches: Sequence[Sequence[EncoderInput]]) -> list[Features]:
    """Encode batches, each begun before the one ahead is waited for; give all features in their order."""
    rows: list[Features] = []
    ahead: Encoding | None = None
    for batch in batches:
        begun = runtime.encode(batch)
        if ahead is not None:
            rows += ahead.rows()
        ahead = begun
    return rows if ahead is None else rows + ahead.rows()
