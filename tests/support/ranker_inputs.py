"""The encoder inputs of a few documents, as a ranker reads them."""

from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, Role

QUERY = "neural search engine"
DOCUMENTS = (
    "a search engine ranks passages of the long document by a query, while windows slide over text",
    "",
    "hello world",
)


def inputs_of(ranker: Ranker) -> list[EncoderInput]:
    """Return the query's own input (dual plans), and the chunks' inputs of documents of different lengths.

    Expansion tokens are left out: runtimes pad such queries, and no stream has them.
    """
    reader = ranker.reader
    query = reader.read_query(QUERY)
    dual = ranker.spec.plan == "dual"
    chunks = [chunk for text in DOCUMENTS for chunk in reader.split(reader.read_document(text))]
    inputs = [reader.chunk_input(None if dual else query, chunk) for chunk in chunks]
    if dual:
        framed = reader.query_input(query)
        real = framed.roles != Role.EXPANSION
        inputs.insert(
            0, EncoderInput(framed.input_ids[real], framed.roles[real], framed.token_type_ids[real])
        )
    return inputs
