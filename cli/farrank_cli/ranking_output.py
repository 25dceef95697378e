"""Shared by `rerank` and `search`: the flags of a call, and the output of its ranking."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from farrank_cli.depth_flag import DEPTH_MEANING, depth
from farrank_cli.flags import count, flag
from farrank_cli.terminal import counted
from farrank_client import Passage, Ranking, Result, ScoreScale, Sentence


def add_ranking_flags(parser: argparse.ArgumentParser, *, needs_query: bool = True) -> None:
    """Add the query, the options of the call and those of the output."""
    add = partial(flag, parser)
    add("--query Q", "the query", required=needs_query)
    add("--ranker NAME", "ranker to use (the server's default)")
    add("--instruction TEXT", "the task, for a ranker with an instruction in its prompt (the ranker's own)")
    add("--score-scale", "raw: the ranker's scores; sigmoid: 0 to 1 (raw)", choices=("raw", "sigmoid"))
    add("--top-n N", "show only the N best (all)", count)
    add("--max-chunks N", "read at most N chunks of each document", count)
    add("--depth DEPTH", DEPTH_MEANING, depth)
    add("--chunks", "show the score of every chunk")
    add("--matches", "show the token that each token of the query found (multi-vector rankers)")
    add(
        "--evidence",
        "sentences: show the sentences that match best (chunks)",
        choices=("chunks", "sentences"),
    )
    add("--context-tokens N", "show the evidence of all results, packed into N tokens", count)
    add("--json", "print one JSON object per line instead of a table")


def ranking_options(args: argparse.Namespace) -> dict[str, Any]:
    """Collect the options of the call, with the client's names."""
    return {
        "ranker": args.ranker,
        "instruction": args.instruction,
        "top_n": args.top_n,
        "max_chunks": args.max_chunks,
        "depth": args.depth,
        "return_chunk_scores": args.chunks,
        "return_token_matches": args.matches,
        "evidence": args.evidence,
        "context_tokens": args.context_tokens,
        "score_scale": args.score_scale and ScoreScale[args.score_scale.upper()],
    }


# A result's document, whose text the caller holds or the server returned.
TextOf = Callable[[Result], str]
_MIN_EXCERPT_WIDTH = 24
_MAX_ID_WIDTH = 40


def print_ranking(ranking: Ranking, query: str, text_of: TextOf, *, as_json: bool) -> None:
    """Print results to stdout, and truncations and timings to stderr."""
    if as_json:
        for rank, result in enumerate(ranking.results, start=1):
            print(json.dumps(_as_object(rank, result, text_of(result)), ensure_ascii=False))
        if ranking.context:
            print(json.dumps({"context": list(map(asdict, ranking.context))}, ensure_ascii=False))
    else:
        _print_table(ranking, query, text_of)
        for piece in ranking.context:
            name = _plain(piece.id) or f"#{piece.index}"
            print(f"\n{name} [{piece.start}:{piece.end}] {piece.score:.4f}\n{_plain(piece.text)}")
    for note in _notes(ranking):
        print(note, file=sys.stderr)


def _print_table(ranking: Ranking, query: str, text_of: TextOf) -> None:
    if not ranking.results:
        print("no documents found")
        return
    names = [_plain(result.id) or f"#{result.index}" for result in ranking.results]
    id_width = min(_MAX_ID_WIDTH, max(len("document"), *map(len, names)))
    reads = [f"{result.chunks_read:,}/{_chunks_of(result):,}" for result in ranking.results]
    read_width = max(len("chunks"), *map(len, reads))
    # Scores of different rounds do not compare: without the round, the order looks wrong.
    rounds = [f"{result.round:>5}  " if ranking.usage.rounds > 1 else "" for result in ranking.results]
    print(
        f"{'rank':>4}  {'round  ' if rounds[0] else ''}{'score':>9}  {'document':<{id_width}}  "
        f"{'chunks':>{read_width}}  passage"
    )
    for rank, result in enumerate(ranking.results, start=1):
        text, name, read, round_ = text_of(result), names[rank - 1], reads[rank - 1], rounds[rank - 1]
        head = f"{rank:>4}  {round_}{result.score:>9.4f}  {name:<{id_width}}  {read:>{read_width}}  "
        deciding = result.deciding_passage
        print(head + ("(no text)" if deciding is None else _passage(deciding, text, len(head))))
        for chunk in result.chunks:
            place = f"{'  chunk':<{id_width}}  {'':>{read_width}}"
            indent = f"{'':>{4 + len(round_)}}  {chunk.score:>9.4f}  {place}  "
            print(indent + _passage(chunk, text, len(indent)))
        for sentence in result.sentences:
            place = f"{'  sentence':<{id_width}}  {'':>{read_width}}"
            indent = f"{'':>{4 + len(round_)}}  {sentence.score:>9.4f}  {place}  "
            print(indent + _passage(sentence, text, len(indent)))
        for match in result.token_matches:
            place = f"{'  match':<{id_width}}  {'':>{read_width}}"
            found = _plain(text[match.start : match.end]) or "(a special token)"
            asked = _plain(query[match.query_start : match.query_end])
            print(
                f"{'':>{4 + len(round_)}}  {match.similarity:>9.4f}  {place}  "
                f"[{match.start}:{match.end}] {asked} → {found}"
            )


def _chunks_of(result: Result) -> int:
    """Count a document's chunks: those that were read or that adaptive depth chose from, and those cut."""
    return max(result.chunks_read, result.chunks_scored) + result.chunks_cut


def _passage(passage: Passage | Sentence, text: str, taken: int) -> str:
    place = f"[{passage.start}:{passage.end}] "
    width = max(_MIN_EXCERPT_WIDTH, shutil.get_terminal_size((120, 24)).columns - taken - len(place))
    excerpt = _plain(passage.text_in(text))
    return place + (excerpt if len(excerpt) <= width else excerpt[: width - 1] + "…")


def _plain(text: str) -> str:
    """One line without control characters: a document must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def _as_object(rank: int, result: Result, text: str) -> dict[str, Any]:
    deciding = result.deciding_passage
    passages = {
        "deciding_passage": None if deciding is None else _passage_object(deciding, text),
        "chunks": [_passage_object(chunk, text) for chunk in result.chunks],
        "sentences": [asdict(each) | {"text": each.text_in(text)} for each in result.sentences],
    }
    # Only passages: the caller has the text, or it is in the server's index.
    return (
        {"rank": rank} | {name: value for name, value in asdict(result).items() if name != "text"} | passages
    )


def _passage_object(passage: Passage, text: str) -> dict[str, Any]:
    return asdict(passage) | {"evidence": passage.evidence.name.lower(), "text": passage.text_in(text)}


def _notes(ranking: Ranking) -> list[str]:
    ranker, shown = ranking.ranker, counted(len(ranking.results), "document")
    ran_in = f" in {ranker.precision}" if ranker.precision else ""
    usage = ranking.usage
    read = sum(result.chunks_read for result in ranking.results)
    chunks = counted(sum(map(_chunks_of, ranking.results)), "chunk")
    notes = [
        f"{ranker.name} {ranker.version}{ran_in}: {shown} shown, {read:,} of {chunks} read in "
        f"{counted(usage.rounds, 'round')}, {ranking.timings.total_ns / 1e9:.3f} s"
    ]
    if usage.ended_early:
        notes.append("time or a failure ended the call before its last round")
    if ranking.query_tokens_cut:
        notes.append(f"the last {counted(ranking.query_tokens_cut, 'token')} of the query were not read")
    cut = [result for result in ranking.results if result.tokens_cut or result.characters_cut]
    if cut:
        characters = sum(result.characters_cut for result in cut)
        tokens = counted(sum(result.tokens_cut for result in cut), "token")
        beyond = counted(sum(result.chunks_cut for result in cut), "chunk")
        notes.append(
            f"beyond a limit in {len(cut)} of {shown}: about {beyond}, {tokens}, "
            f"{characters:,} characters at the end"
        )
    return notes
