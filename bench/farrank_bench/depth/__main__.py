"""Replay how much of long documents a ranker must read: `python -m farrank_bench.depth`.

Rankers read every chunk of the candidates of judged questions once; the scores stay in --cache, so that an
interrupted run goes on. The replay then reads chunks in the orders of several selectors and in rounds, and
compares the rankings with reading everything and with FirstP. Weights and schedules are chosen on a third of
the questions and tested on the others.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median

from farrank_bench.depth.chunk_scores import KeptScores, LoadedRanker
from farrank_bench.depth.depth_page import Judged, chart, section
from farrank_bench.depth.judging import FIRSTP_POSITIONS, judge
from farrank_bench.depth.replay import MEASURES
from farrank_bench.depth.whole_documents import (
    WholeDocuments,
    articles,
    demo,
    far,
    kept_collection,
    write_set,
)
from farrank_bench.report import Heading
from farrank_cli.flags import at_least
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.files.open import Overrides

PAGE = "README.md"
TITLE = "Depth by replay: whole documents at the price of their beginnings"
COLLECTIONS = ("articles", "far", "demo")
RANKERS = ("maxp", "parade-attn")
PACKAGES = ("farrank", "torch", "transformers", "openvino", "numpy")
# Questions of a kept collection; `--questions` takes the first of them.
MOST_QUESTIONS = 2000
FAR_CANDIDATES = 20
# The positions of FirstP less a query's 32 tokens and three special ones.
FIRSTP_WINDOW = FIRSTP_POSITIONS - 35
# The positions of a timed batch.
BATCH_POSITIONS = 2048
NOTES = (
    "cost in positions, query and special tokens included, as a multiple of the 512 that FirstP reads of a "
    "document; FirstP is the ranker of `--firstp` with a window of {window} tokens; differences are means "
    "over questions with the 95% interval of a paired bootstrap of 10,000 samples, seed {seed}; "
    "{runtime}; a window of this ranker takes {ratio:.3f} of the time of 512 positions"
)


def made_collections(given: argparse.Namespace) -> Iterator[tuple[str, Path, WholeDocuments]]:
    """Read the collections that were asked for, or make them. Yield their names, folders and contents."""
    seed, of_articles, of_demo = given.seed, given.article_candidates, given.demo_candidates
    making: Mapping[str, tuple[int, Callable[[], WholeDocuments]]] = {
        "articles": (of_articles, partial(articles, given.squad, MOST_QUESTIONS, of_articles, seed)),
        "far": (FAR_CANDIDATES, partial(far, given.squad, MOST_QUESTIONS, FAR_CANDIDATES, seed)),
        "demo": (of_demo, partial(demo, given.cache / "pydoc", of_demo, seed)),
    }
    for name in given.collections:
        candidates, make = making[name]
        folder = given.cache / f"{name}-{candidates}-{seed}"
        yield name, folder, kept_collection(folder / "collection.json", make)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The loaded rankers, and the kept scores of each collection."""

    rankers: Mapping[str, LoadedRanker]
    firstp: LoadedRanker
    scores: Mapping[str, KeptScores]
    questions: int

    def make(self, minutes: float) -> None:
        """Make the scores that are missing, of all collections in step, until the time is up."""
        end_s = time.monotonic() + 60 * minutes
        work = [
            (number / count, name, number)
            for name, scores in self.scores.items()
            for count in [min(self.questions, len(scores.collection.questions))]
            for number in range(count)
        ]
        for done, (_, name, number) in enumerate(sorted(work)):
            if time.monotonic() > end_s:
                print(f"stopped after {minutes:g} minutes: {done:,} of {len(work):,} questions", flush=True)
                return
            for ranker in self.rankers.values():
                self.scores[name].make(number, ranker, self.firstp)
            if done % 20 == 19:
                print(f"{done + 1:,} of {len(work):,} questions", flush=True)

    def judged(self, name: str, seed: int) -> Judged:
        """Replay one collection with every ranker, on the questions whose scores are there."""
        scores, found = self.scores[name], {}
        for ranker, loaded in self.rankers.items():
            count = min(self.questions, len(scores.collection.questions))
            cases = (scores.case(number, loaded, self.firstp) for number in range(count))
            some = [case for case in cases if case is not None]
            try:
                found[ranker] = judge(some, MEASURES[scores.collection.measure], seed)
            except ValueError as error:
                print(f"{name}, {ranker}: left out: {error}", flush=True)
            else:
                print(f"{name}, {ranker}: {len(some):,} questions replayed", flush=True)
        return found


def relative_time(ranker: LoadedRanker, text: str, rounds: int = 5) -> float:
    """Compare the time of one of the ranker's windows with that of an input of 512 positions: the ratio."""
    reader = ranker.reader
    query = reader.read_query("how much longer does a longer input take")
    document = reader.read_document(text)
    window = reader.split(document)[0]
    whole = replace(window, ids=document.ids[: FIRSTP_POSITIONS - len(query) - 3])
    inputs = [reader.chunk_input(query, chunk) for chunk in (window, whole)]
    batches = [[each] * max(1, BATCH_POSITIONS // each.tokens) for each in inputs]
    ratios = []
    for _ in range(rounds):
        taken = []
        for batch in batches:
            begun_s = time.perf_counter()
            ranker.runtime.encode(batch).rows()
            taken.append((time.perf_counter() - begun_s) / len(batch))
        ratios.append(taken[0] / taken[1])
    return median(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing, replay it, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.depth", description=__doc__)
    add = parser.add_argument
    add("--collections", nargs="+", choices=COLLECTIONS, default=list(COLLECTIONS), metavar="NAME")
    add("--maxp", default="embedded:maxp", help="a ranker of family maxp (%(default)s)")
    add("--parade-attn", default="embedded:parade-attn", help="a ranker of family parade-attn (%(default)s)")
    add("--rankers", nargs="+", choices=RANKERS, default=list(RANKERS), metavar="NAME")
    add("--firstp", default="embedded:firstp", help="a ranker of family firstp (%(default)s)")
    add("--encoder", default="embedded", help="a bi-encoder (%(default)s)")
    add("--precision", choices=("fp32", "bf16"), help="of all rankers; the fastest that each has by default")
    add("--squad", type=Path, default=Path("../shared/data/squad"), help="SQuAD's folder (%(default)s)")
    add("--questions", type=at_least(2, MOST_QUESTIONS), default=300, help="of each collection (%(default)s)")
    add("--article-candidates", type=at_least(2), default=6, help="candidates of articles (%(default)s)")
    add("--demo-candidates", type=at_least(2, 100), default=100, help="candidates of the demo (%(default)s)")
    add("--minutes", type=float, default=inf, help="make scores for at most this long, then replay them")
    add("--seed", type=int, default=0, help="of all draws (%(default)s)")
    add("--cache", type=Path, default=Path(".cache/depth"), help="the kept scores (%(default)s)")
    add("--out", type=Path, help="write the report and its charts to this folder, too")
    meaning = "write each collection's questions as files of farrank loadtest, and replay nothing"
    add("--sets", type=Path, metavar="FOLDER", help=meaning)
    given = parser.parse_args(arguments)
    if given.sets:
        for name, _, collection in made_collections(given):
            write_set(collection, given.questions, given.sets / name)
        return 0
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    whole = Overrides(max_document_tokens=WHOLE_DOCUMENT)
    first = Overrides(window=FIRSTP_WINDOW, max_document_tokens=FIRSTP_WINDOW)
    rankers = {
        name: LoadedRanker.open(getattr(given, name.replace("-", "_")), given.precision, whole)
        for name in given.rankers
    }
    encoder = LoadedRanker.open(given.encoder, given.precision, Overrides())
    reader = next(iter(rankers.values())).reader
    made = {
        name: KeptScores(folder, collection, reader, encoder)
        for name, folder, collection in made_collections(given)
    }
    replay = Replay(rankers, LoadedRanker.open(given.firstp, given.precision, first), made, given.questions)
    replay.make(given.minutes)
    pages = []
    for name, scores in made.items():
        judged = replay.judged(name, given.seed)
        if not judged:
            continue
        pages.append(section(name, scores.collection.measure, judged, given.seed))
        if given.out:
            chart(name, scores.collection.measure, judged).savefig(given.out / f"{name}.png")
    text = max(next(iter(made.values())).collection.texts.values(), key=len)
    timed = next(iter(rankers.values()))
    does = timed.runtime.capabilities()
    notes = NOTES.format(
        window=FIRSTP_WINDOW,
        seed=given.seed,
        runtime=f"{does.runtime} in {does.precision}",
        ratio=relative_time(timed, text),
    )
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "farrank_bench.depth", *words])
    page = f"{Heading(TITLE, notes, PACKAGES).page(command, {})}\n" + "\n\n".join(pages) + "\n"
    print(page)
    if given.out:
        (given.out / PAGE).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
