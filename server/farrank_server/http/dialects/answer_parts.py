"""The parts of an answer that all shapes share: warnings, headers with timings, and passages."""

from collections.abc import Iterable
from urllib.parse import quote

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import InvalidArgument
from farrank_server.http.dialects.dialect_request import DialectRequest, SpansBody

# Enough to see the problem; a thousand lines would only be long.
MAX_WARNINGS = 20

# The default of Cohere's API.
DEFAULT_THRESHOLD = 0.1


def check_whole(request: DialectRequest, answer: pb.RerankResponse) -> None:
    """Refuse to answer from a part of a text if the caller does not allow a part to be left out.

    Raises: InvalidArgument.
    """
    body = request.body
    if body.truncation is False or body.truncate in (False, "NONE"):
        rule = "truncation is not allowed by the request"
    elif body.truncation_direction in ("left", "Left"):
        rule = "truncation_direction is left, and texts are read from their beginning"
    elif body.truncate == "START":
        rule = "truncate is START, and texts are read from their beginning"
    else:
        return
    if warnings := warnings_of(answer):
        raise InvalidArgument(f"documents: {warnings[0]}, and {rule}")


def warnings_of(answer: pb.RerankResponse) -> list[str]:
    """Say how many tokens of the query and of each document were not read."""
    cut = sorted((each.index, each.tokens_cut) for each in answer.results if each.characters_cut)
    warnings = [f"{tokens} tokens of document {index} were not read" for index, tokens in cut]
    if answer.query_tokens_cut:
        warnings.insert(0, f"{answer.query_tokens_cut} tokens of the query were not read")
    if len(warnings) > MAX_WARNINGS:
        more = len(warnings) - MAX_WARNINGS
        warnings[MAX_WARNINGS:] = [f"tokens of {more} more documents were not read"]
    return warnings


def chunks_of(answer: pb.RerankResponse) -> dict[str, int]:
    """Count all documents' chunks: those that were read, that adaptive depth scored, and that were cut."""
    names = ("read", "scored", "cut")
    return {name: sum(getattr(each, f"chunks_{name}") for each in answer.results) for name in names}


def headers_of(request: DialectRequest, answer: pb.RerankResponse) -> dict[str, str]:
    """Headers with what was read and what was cut, and times in milliseconds as TEI's clients know them."""
    timings = answer.timings
    cut = answer.query_tokens_cut + sum(each.tokens_cut for each in answer.results)
    device = request.scorer.members[0].capabilities.device
    times = {
        "x-compute-time": timings.total_ns,
        "x-total-time": timings.total_ns,
        "x-tokenization-time": timings.tokenization_ns,
        "x-queue-time": timings.queue_ns,
        "x-inference-time": timings.inference_ns,
    }
    unknown = {"X-Farrank-Unknown-Model": quote(request.unknown_model[:100], "/:")}
    return {
        **(unknown if request.unknown_model else {}),
        "X-Farrank-Tokens-Cut": str(cut),
        "X-Farrank-Rounds": str(answer.usage.rounds),
        **{f"X-Farrank-Chunks-{name.title()}": str(count) for name, count in chunks_of(answer).items()},
        "x-compute-type": device.partition(":")[0],
        "x-compute-characters": str(sum(map(len, request.texts))),
        "x-compute-tokens": str(answer.usage.tokens),
        **{name: str(round(ns / 1e6)) for name, ns in times.items()},
    }


def best_of(request: DialectRequest, answer: pb.RerankResponse) -> Iterable[pb.Result]:
    """The results to return, best first."""
    return answer.results[: request.top_n or None]


def spans_of(request: DialectRequest, answer: pb.RerankResponse, result: pb.Result) -> list[dict[str, float]]:
    """The passages that count in a document, best first, without overlaps, and none below the threshold.

    Scores lie between 0 and 1, as the document's score does. A chunk with a score of its own keeps it.
    Attention and leave-one-out are shares of one score: the strongest chunk gets the document's score, and
    others get their share of it. With `evidence: sentences` the passages are the document's sentences;
    with `context_tokens` they are its pieces of the context, in the order of its text.
    """
    wanted = request.body.relevant_spans or SpansBody()
    if request.wants_context:
        # All of them: the budget is the limit.
        return [
            {"start": each.start, "end": each.end, "score": each.score}
            for each in answer.context
            if each.index == result.index
        ]
    if request.wants_sentences:
        # Sentences were chosen: a threshold that the client does not set leaves none of them out.
        return [
            {"start": each.start, "end": each.end, "score": each.score}
            for each in result.sentences[: wanted.max_spans]
            if each.score >= (wanted.threshold or 0.0)
        ]
    threshold = DEFAULT_THRESHOLD if wanted.threshold is None else wanted.threshold
    strongest = max((each.score for each in result.chunks), default=0.0)
    spans: list[dict[str, float]] = []
    for chunk in sorted(result.chunks, key=lambda each: -each.score):
        score = chunk.score
        if chunk.evidence != pb.EVIDENCE_CHUNK_SCORE:
            share = chunk.score / strongest if strongest > 0 else float(chunk.score == strongest)
            score = result.score * max(0.0, share)
        if len(spans) == wanted.max_spans or score < threshold:
            break
        overlaps = any(chunk.start < each["end"] and each["start"] < chunk.end for each in spans)
        if chunk.end > chunk.start and not overlaps:
            spans.append({"start": chunk.start, "end": chunk.end, "score": score})
    return spans
