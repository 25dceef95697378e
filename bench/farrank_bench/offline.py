"""A runtime without a server: it encodes the same inputs repeatedly, and scores whole requests."""

import time
from collections.abc import Callable, Sequence
from itertools import islice

from farrank_bench.rounds import ContenderFailed, PassResult
from farrank_exporters.parity import batches_in_order
from farrank_rankers.features import Features, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Encoding, OutOfMemory, Runtime


def longest_first(inputs: Sequence[EncoderInput]) -> list[EncoderInput]:
    """Sort inputs by length, longest first: batches of similar lengths have the least padding."""
    return sorted(inputs, key=lambda each: -each.tokens)


def encode_in_turn(runtime: Runtime, batches: Sequence[Sequence[EncoderInput]]) -> list[Features]:
    """Encode batches; each one starts before the previous one is awaited. Returns all features in order."""
    rows: list[Features] = []
    ahead: Encoding | None = None
    for batch in batches:
        begun = runtime.encode(batch)
        if ahead is not None:
            rows += ahead.rows()
        ahead = begun
    return rows if ahead is None else rows + ahead.rows()


class RuntimeAlone:
    """A contender: a runtime that encodes inputs in their order, `passes` times in a row, without scoring.

    Like a server, it halves batches that do not fit into memory; `max_tokens` is the size that fits.
    `check_time` is called before each pass. If it raises TimeoutError, all rounds end.
    """

    def __init__(
        self,
        runtime: Runtime,
        inputs: Sequence[EncoderInput],
        passes: int = 1,
        *,
        padded: bool = True,
        check_time: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._inputs = inputs
        self._passes = passes
        self._padded = padded
        self._check_time = check_time
        self.max_tokens = runtime.capabilities().max_batch_tokens

    def score(self) -> PassResult:
        """Encode everything. Raises: ContenderFailed."""
        while True:
            batches = list(batches_in_order(self._inputs, self.max_tokens, padded=self._padded))
            try:
                started_s = time.perf_counter()
                for _ in range(self._passes):
                    self._check_time()
                    encode_in_turn(self._runtime, batches)
                return PassResult(time.perf_counter() - started_s, self._passes * len(self._inputs))
            except OutOfMemory as error:
                if max(map(len, batches)) == 1:
                    raise ContenderFailed(f"one input alone does not fit: {error}") from error
                self.max_tokens //= 2
            except TimeoutError:
                raise
            except Exception as error:
                raise ContenderFailed(f"{type(error).__name__}: {error}") from error


class Request:
    """A query and its documents, read and split. `query` is None if each chunk's input contains it."""

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
        """Return all documents' inputs in one list."""
        return [item for document in self.documents for item in document]


def score(runtime: Runtime, request: Request) -> list[float]:
    """Encode and aggregate a request. Returns one score per document."""
    capabilities = runtime.capabilities()
    batches = list(
        batches_in_order(request.inputs, capabilities.max_batch_tokens, padded=not capabilities.packed)
    )
    if request.query is not None:
        batches.append([request.query])
    rows = iter(encode_in_turn(runtime, batches))
    documents = [stacked(list(islice(rows, len(each)))) for each in request.documents]
    queries = None if request.query is None else [next(rows)] * len(documents)
    return runtime.score(documents, queries).scores
