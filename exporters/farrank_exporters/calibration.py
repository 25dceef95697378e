"""What int8 quantization measures the range of activations with: inputs as the ranker will see them."""

import random
from collections.abc import Sequence
from dataclasses import replace

from farrank_rankers.collate import Batch, collate
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput

CALIBRATION_INPUTS = 128
SHORTEST_TOKENS = 8
SEED = 1
# Of a dual plan's inputs, one in so many is a query.
QUERY_EVERY = 4


def calibration_batches(
    reader: Reader, queries: Sequence[str], texts: Sequence[str], count: int = CALIBRATION_INPUTS
) -> list[Batch]:
    """Frame stretches of texts, short ones to whole windows, as the ranker's reader frames chunks.

    One input a batch: padding would be measured, too. The same texts give the same batches.
    Raises: ValueError if there is no query or no text that holds a token.
    """
    randomly = random.Random(SEED)
    read_queries = [read for read in map(reader.read_query, queries) if len(read)]
    documents = [read for read in map(reader.read_document, texts) if len(read)]
    for name, kept in (("queries", read_queries), ("texts", documents)):
        if not kept:
            raise ValueError(f"{name} hold no token; calibration needs at least 1")
    dual = reader.spec.plan == "dual"

    def draw(number: int) -> EncoderInput:
        query = read_queries[number % len(read_queries)]
        if dual and number % QUERY_EVERY == 0:
            return reader.query_input(query)
        chunk = randomly.choice(reader.split(documents[number % len(documents)]))
        tokens = randomly.randint(min(SHORTEST_TOKENS, len(chunk)), len(chunk))
        return reader.chunk_input(None if dual else query, replace(chunk, ids=chunk.ids[:tokens]))

    return [collate([draw(number)], reader.pad_id) for number in range(count)]
