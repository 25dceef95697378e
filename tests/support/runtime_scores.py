"""Documents scored through a runtime, as a server does it."""

from farrank_rankers.features import stacked
from farrank_rankers.reader import Reader
from farrank_runtimes.runtime import Runtime

QUERY = "where does the river rise"
TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in range(0, 100, 7)]


def scores_through(runtime: Runtime, reader: Reader) -> list[float]:
    """Score TEXTS with one batch for each document's chunks."""
    query = reader.read_query(QUERY)
    dual = reader.spec.plan == "dual"
    asked = runtime.encode([reader.query_input(query)]).rows() if dual else None
    scores: list[float] = []
    for text in TEXTS:
        chunks = reader.split(reader.read_document(text))
        inputs = [reader.chunk_input(None if dual else query, chunk) for chunk in chunks]
        rows = runtime.encode(inputs).rows()
        assert {str(row.vectors.dtype) for row in rows} == {"torch.float32"}
        found = runtime.score([stacked(rows)], asked)
        assert [len(each) for each in found.chunk_scores] == [len(chunks)]
        scores += found.scores
    return scores
