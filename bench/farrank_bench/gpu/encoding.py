"""Encode the same inputs packed or padded, and score a whole request, without a server."""

import time
from collections.abc import Sequence
from itertools import islice

from farrank_bench.contenders.rounds import ContenderFailed, Rounds, Scored
from farrank_bench.gpu.bench import TimeLimit
from farrank_bench.offline import Batch, batches_in_order
from farrank_bench.report import Row, not_measured, spread
from farrank_rankers.features import Features, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Encoding, OutOfMemory, Runtime


class PartlyFailed(RuntimeError):
    """Some of a section could not be measured; `rows` hold what was, and say what was not."""

    def __init__(self, message: str, rows: Sequence[Row]) -> None:
        super().__init__(message)
        self.rows = list(rows)


def whole(rows: list[Row], *found: Rounds) -> list[Row]:
    """Give a section's rows if no form of any rounds failed.

    Raises: PartlyFailed.
    """
    failed = [name for rounds in found for name in rounds.failed]
    if failed:
        raise PartlyFailed(f"failed: {'; '.join(dict.fromkeys(failed))}", rows)
    return rows


class Form:
    """A contender that encodes inputs in their order, `passes` times in a row, batch behind batch.

    As a server does, it halves batches that do not fit; `max_tokens` says where that ended. Rounds call
    documents what are inputs here.
    """

    def __init__(
        self,
        runtime: Runtime,
        inputs: Sequence[EncoderInput],
        passes: int,
        *,
        padded: bool,
        limit: TimeLimit | None = None,
    ) -> None:
        self._limit = limit or TimeLimit()
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
                    self._limit.check()
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


class Request:
    """A query and its documents, read and split. `query` is None where chunks hold it."""

    def __init__(self, reader: Reader, query: str, texts: Sequence[str]) -> None:
        read = reader.read_query(query)
        dual = reader.spec.plan == "dual"
        self.query: EncoderInput | None = reader.query_input(read) if dual else None
        self.documents = [
            [
                reader.chunk_input(None if dual else read, chunk)
                for chunk in reader.split(reader.read_document(text))
            ]
            for text in texts
        ]

    @property
    def inputs(self) -> list[EncoderInput]:
        """All documents' inputs in a row."""
        return [item for document in self.documents for item in document]


def score(runtime: Runtime, request: Request) -> list[float]:
    """Encode and aggregate a request; one score a document."""
    capabilities = runtime.capabilities()
    batches: list[Batch] = list(
        batches_in_order(request.inputs, capabilities.max_batch_tokens, padded=not capabilities.packed)
    )
    if request.query is not None:
        batches.append([request.query])
    rows = iter(encode_in_turn(runtime, batches))
    documents: list[Features] = [stacked(list(islice(rows, len(each)))) for each in request.documents]
    queries = None if request.query is None else [next(rows)] * len(documents)
    return runtime.score(documents, queries).scores
