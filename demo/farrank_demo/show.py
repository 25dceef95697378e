"""Print what one question brought: both orders, the deciding passages, where the time went."""

import textwrap

from farrank_client import Ranking, Result

SHOWN = 5
EXCERPTS = 3
EXCERPT_WIDTH = 100
EXCERPT_LINES = 4


def show_ranking(question: str, ranking: Ranking, answers: set[str]) -> None:
    """Print a ranking beside the first stage's. `answers` are marked: the documents judged to answer."""
    first_stage = sorted(ranking.results, key=lambda result: result.index)
    print(f"\n── {question}")
    print(f"   {'Lucene (BM25)':<34}   {'reranked':<34}   (* judged to answer the question)")
    for place in range(min(SHOWN, len(first_stage))):
        before, after = first_stage[place], ranking.results[place]
        left, right = _mark(before, answers), f"{_mark(after, answers)}  {after.score:.3f}"
        print(f"{place + 1:>2} {left:<34}   {right:<34}   was {after.index + 1}")
    for result in ranking.results[:EXCERPTS]:
        _show_passage(result)
    timings, usage = ranking.timings, ranking.usage
    stages = {
        "first stage": timings.first_stage_ns,
        "reading": timings.tokenization_ns,
        "queue": timings.queue_ns,
        "encoding": timings.inference_ns,
        "scoring": timings.aggregation_ns,
        "in all": timings.total_ns,
    }
    print(
        "   time (stages overlap): " + ", ".join(f"{name} {ns / 1e6:.0f} ms" for name, ns in stages.items())
    )
    print(
        f"   {len(ranking.results)} documents, {usage.chunks} chunks ({usage.cached_chunks} cached), "
        f"{usage.tokens} tokens, {sum(result.tokens_cut for result in ranking.results)} beyond the limit"
    )


def _mark(result: Result, answers: set[str]) -> str:
    return result.id + (" *" if result.id in answers else "")


def _show_passage(result: Result) -> None:
    passage = result.deciding_passage
    if passage is None or result.text is None:
        return
    text = " ".join(passage.text_in(result.text).split())
    print(f"   {result.id}, characters {passage.start} to {passage.end}, {passage.score:.3f}:")
    lines = textwrap.wrap(text, EXCERPT_WIDTH, max_lines=EXCERPT_LINES, placeholder=" …")
    print(textwrap.indent("\n".join(lines), "      "))
