"""The runtime that Farrank's server picks, on the same pairs without a server."""

from collections.abc import Sequence
from dataclasses import dataclass

from farrank_bench.contenders.interface import Scored
from farrank_bench.offline import measure_offline
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.interface import Runtime


@dataclass(frozen=True, slots=True)
class Alone:
    """A runtime and its inputs, tokenized already: one pair is one document."""

    runtime: Runtime
    inputs: Sequence[EncoderInput]

    def score(self) -> Scored:
        """Encode all inputs in full batches sorted by length; the scores are not asked for."""
        found = measure_offline(self.runtime, self.inputs)
        return Scored(found.seconds, found.pairs)
