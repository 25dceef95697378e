"""Rank candidates with a runtime and a reader alone: no server, every document encoded once."""

from collections.abc import Mapping, Sequence

from farrank_bench.offline import batches_of
from farrank_demo.questions import Question
from farrank_rankers.features import Features, stacked
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Runtime
from farrank_server.first_stage import Candidate


def rank_offline(
    runtime: Runtime,
    reader: Reader,
    questions: Sequence[Question],
    candidates: Mapping[str, Sequence[Candidate]],
    max_chunks: int | None = None,
) -> dict[str, dict[str, float]]:
    """Score each question's candidates with a ranker of plan dual: query id to document id to score."""
    texts = {each.doc_id: each.text for found in candidates.values() for each in found}
    chunks: list[EncoderInput] = []
    spans: dict[str, slice] = {}
    for doc_id, text in texts.items():
        split = reader.split(reader.read_document(text, max_chunks), max_chunks)
        spans[doc_id] = slice(len(chunks), len(chunks) + len(split))
        chunks += [reader.chunk_input(None, chunk) for chunk in split]
    queries = [reader.query_input(reader.read_query(question.text)) for question in questions]
    encoded_chunks = encode_all(runtime, chunks)
    encoded_queries = encode_all(runtime, queries)
    run: dict[str, dict[str, float]] = {}
    for question, query in zip(questions, encoded_queries, strict=True):
        found = [each.doc_id for each in candidates[question.query_id]]
        documents = [stacked(encoded_chunks[spans[doc_id]]) for doc_id in found]
        scores = runtime.score(documents, [query] * len(found)).scores
        run[question.query_id] = dict(zip(found, scores, strict=True))
    return run


def encode_all(runtime: Runtime, inputs: Sequence[EncoderInput]) -> list[Features]:
    """Encode inputs in full batches of like lengths; give their features in the order of the inputs."""
    longest_first = sorted(range(len(inputs)), key=lambda index: -inputs[index].tokens)
    features: dict[int, Features] = {}
    ordered = [inputs[index] for index in longest_first]
    places = iter(longest_first)
    for batch in batches_of(ordered, runtime.capabilities().max_batch_tokens):
        rows = runtime.encode(batch).rows()
        features |= {next(places): row for row in rows}
    return [features[index] for index in range(len(inputs))]
