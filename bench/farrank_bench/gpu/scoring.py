"""A request as a runtime sees it: tokenized documents in, scores out, no server between."""

from collections.abc import Sequence
from itertools import islice

from farrank_bench.gpu.batches import Batch, batches_in_order
from farrank_bench.gpu.form import encode_in_turn
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.interface import Runtime


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
    query = None if request.query is None else stacked([next(rows)] * len(documents))
    scores, _ = runtime.aggregate(*batched(documents), query)
    return scores
