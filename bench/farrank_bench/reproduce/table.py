"""The page of a folder's finished cells, scored from the kept runs and judgements, without inference."""

from collections.abc import Iterable, Sequence

from farrank_bench.first_stages import ALPHA
from farrank_bench.report import Heading, spread
from farrank_bench.reproduce.cells import CALLERS, CELLS, Figures, Kept
from farrank_bench.reproduce.corpora import CORPORA, QUESTIONS
from farrank_bench.reproduce.corpora import SEED as DRAWN
from farrank_bench.reproduce.measuring import SEED
from farrank_loadtest.accuracy.accuracy_report import Report, render
from farrank_loadtest.accuracy.evaluation import RESAMPLES, EvaluationSettings, evaluate_models
from farrank_loadtest.kept_files import markdown_table
from farrank_trec import read_qrels, read_run
from farrank_trec.measures import parse_measures

MEASURES = ("nDCG@10", "RR")
NOTES = (
    "seeds: {drawn} (a collection's questions, at most {questions}, the demo's are all), {seed} (the timed "
    "questions of 16 callers, and the tests' {resamples:,} resamples); times: of one caller all questions, "
    "divided into rounds; a call by Farrank's client over gRPC includes the search; a peer's calls get "
    "their candidates' texts without a search, and wait in line if the peer is a library; Lucene alone is "
    "asked without a server; p50 is the median of the rounds' medians (smallest to largest), p99 is over all "
    "rounds; no cache of documents; bytes a document and seconds are those of the index with its vectors, or "
    "of a peer's vectors alone; the cells took {minutes:.0f} minutes in all"
)
HEADS = (
    "cell",
    "by",
    "first stage",
    "ranker",
    "depth",
    "candidates",
    "runs on",
    *(f"p{percent}, {n} caller{'s' * (n > 1)}, ms" for n in CALLERS for percent in (50, 99)),
    "timed calls, 1 / 16 callers",
    "rounds",
    "bytes a document",
    "index, s",
)


def page(kept: Kept, command: str, failures: Sequence[str] = ()) -> str:
    """Write the page. `failures` say which cells are missing, and why.

    Raises: InputError if a kept file cannot be read.
    """
    finished = kept.finished()
    notes = NOTES.format(
        drawn=DRAWN,
        questions=QUESTIONS,
        seed=SEED,
        resamples=RESAMPLES,
        minutes=sum(each.seconds for each in finished) / 60,
    )
    heading = Heading(
        "Quality, latency and size",
        notes,
        warnings=failures,
        machine=_different(each.machine for each in finished),
        versions=_different(each.versions for each in finished),
    )
    parts = [heading.page(command, {})]
    for corpus in CORPORA:
        its = [each for each in finished if each.cell.corpus == corpus]
        if its:
            rows = [_row(each) for each in its]
            parts += [
                f"## {corpus}\n",
                render([score(kept, its)]),
                markdown_table(HEADS, rows, aligned=False),
            ]
            parts.append(
                f"\nOne cell: `{command.partition(' --')[0]} --out FOLDER --cells {its[0].cell.name}`\n"
            )
    return "\n".join(parts)


def score(kept: Kept, finished: Sequence[Figures]) -> Report:
    """Score the runs of one collection's cells; each is compared with the collection's first cell.

    Raises: InputError if a run or the judgements cannot be read.
    """
    corpus = finished[0].cell.corpus
    baseline = next(name for name, cell in CELLS.items() if cell.corpus == corpus)
    names = [each.cell.name for each in finished]
    settings = EvaluationSettings(
        test_set=corpus,
        measures=parse_measures(MEASURES),
        baselines={name: baseline for name in names if name != baseline and baseline in names},
        fulls={},
        alpha=ALPHA,
        resamples=RESAMPLES,
        seed=SEED,
        ranked_only=False,
    )
    runs = {each.cell.name: [[read_run(kept.run(each.cell))]] for each in finished}
    report, _ = evaluate_models([read_qrels(kept.judgements(corpus))], runs, settings, notes=[], inputs={})
    return report


def _different(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _row(figures: Figures) -> tuple[str, ...]:
    way = figures.cell.way
    times = []
    for callers in map(str, CALLERS):
        timed = callers in figures.p50_ms
        times.append(spread(figures.p50_ms[callers], ".1f") if timed else "")
        times.append(f"{figures.p99_ms[callers]:.1f}" if timed else "")
    return (
        figures.cell.name,
        way.peer or ("Farrank" if way.ranker else "Lucene"),
        way.first_stage,
        way.ranker,
        way.depth,
        str(way.candidates),
        figures.runs_on,
        *times,
        " / ".join(map(str, figures.calls.values())),
        str(figures.rounds) if figures.p50_ms else "",
        "" if figures.bytes_a_document is None else f"{figures.bytes_a_document:,.0f}",
        "" if figures.index_s is None else f"{figures.index_s:,.0f}",
    )
