"""The encoder inputs of a few documents, as a ranker reads them."""

from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput

QUERY = "neural search engine"
DOCUMENTS = (
    "a search engine ranks passages of the long document by a query, while windows slide over text",
    "",
    "hello world",
)


def inputs_of(ranker: Ranker) -> list[EncoderInput]:
    """Return the query's own input (dual plans), and the chunks' inputs of documents of different lengths."""
    reader = ranker.reader
    query = reader.read_query(QUERY)
    dual = ranker.spec.plan == "dual"
    chunks = [chunk for text in DOCUMENTS for chunk in reader.split(reader.read_document(text))]
    inputs = [reader.chunk_input(None if dual else query, chunk) for chunk in chunks]
    return [reader.query_input(query), *inputs] if dual else inputs
