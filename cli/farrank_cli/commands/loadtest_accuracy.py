"""`farrank loadtest accuracy`: rerank a test set with several rankers and compare them as the papers do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.connection import read_key
from farrank_cli.depth_flag import DEPTH_MEANING, depth
from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.flags import count, flag, flag_group, positive, share
from farrank_cli.terminal import Progress
from farrank_cli.terminated import run_interruptible

if TYPE_CHECKING:
    from farrank_loadtest.accuracy.reranking import RerankedRuns, RunMaker
    from farrank_loadtest.accuracy.test_set import Model, TestSet


EPILOG = """\
examples:
  rerank a run's candidates with two rankers and a model of two seeds, compared with firstp:
    farrank loadtest accuracy --candidates bm25.trec --queries topics.tsv --collection docs.jsonl.gz \\
      --qrels qrels.txt --ranker firstp --ranker maxp --ranker parade=parade-s1,parade-s2 \\
      --baseline firstp --out results/dl19
  full reading against adaptive depth, each compared with firstp and with BM25's order of the same chunks:
    farrank loadtest accuracy --candidates bm25.trec --queries topics.tsv --collection docs.jsonl.gz \\
      --qrels qrels.txt --ranker firstp --ranker maxp --depth all --depth adaptive \\
      --selector embedded:maxp --baseline firstp --baseline "maxp adaptive=selector" --out results/depth
  evaluate existing runs; three years count as one test set:
    farrank loadtest accuracy --evaluate-only --qrels 2019.txt --qrels 2020.txt --qrels 2021.txt \\
      --run bm25=2019.trec+2020.trec+2021.trec
  the papers' table of several test sets, from the reports of each:
    farrank loadtest accuracy --combine results/dl/accuracy.json results/robust/accuracy.json
"""


# The farrank_loadtest imports are local: the flags and their help need no extra.
def configure(parser: argparse.ArgumentParser) -> None:
    """Add the test's flags."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = parser.add_argument_group("models to compare, in this order")
    add = partial(flag, group)
    # Both go into one list: the table keeps the order in which models were named.
    meaning = "a ranker of the server, or MODEL=R1,R2,…: the seeds of one model"
    add("--ranker RANKER", meaning, lambda text: ("ranker", text), repeated=True, dest="models")
    meaning = "an existing run; a comma separates seeds, a plus the parts of the test set"
    add("--run MODEL=FILE", meaning, lambda text: ("run", text), repeated=True, dest="models")
    meaning = f"{DEPTH_MEANING}. Each ranker is a model at each depth, such as `maxp adaptive`; one that "
    meaning += "cannot be adaptive is one model. May be repeated"
    add("--depth DEPTH", meaning, depth, repeated=True, dest="depths")
    meaning = "add the model selector: BM25 orders documents by their best chunks of this ranker"
    add("--selector SOURCE", meaning)
    meaning = "baseline of gains and tests, of every model that has no other if MODEL= is left out"
    add("--baseline [MODEL=]BASELINE", meaning, repeated=True)
    meaning = "the model whose share MODEL keeps (that of depth all); of every other model without MODEL="
    add("--full [MODEL=]FULL", meaning, repeated=True)
    mode = group.add_mutually_exclusive_group()
    flag(mode, "--evaluate-only", "call no server")
    flag(mode, "--combine JSON", "make one table of several accuracy.json", Path, nargs="+")

    meaning = "Files are plain or .gz. Give --qrels, --candidates and --queries once for each part."
    add = flag_group(parser, "test set", meaning)
    add("--test-set NAME", "its name in the table", default="")
    meaning = "TREC judgements; `doc-id-prefix`: documents named QUERYID_… are relevant (FarRelevant)"
    add("--qrels FILE", meaning, repeated=True)
    add("--candidates RUN", "TREC run to rerank", Path, repeated=True)
    add("--index NAME", "rerank documents that the server finds in its index instead")
    meaning = "rerank the first K documents of each query, and cut every --run to K (all)"
    add("--k K", meaning, count)
    add("--queries FILE", "id<TAB>text, or .jsonl", Path, repeated=True)
    add("--query-field KEY", "key of the query in .jsonl, such as description", default="")
    meaning = "JSON lines with id, text and optionally title; may be repeated"
    add("--collection FILE", meaning, Path, repeated=True)
    add("--skip-missing", "leave out documents that are missing in the collection")

    add = flag_group(parser, "server")
    meaning = "HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL"
    add("--target ADDRESS", meaning, default="localhost:50051")
    add("--allow-remote", "allow a server that is not on this machine")
    add("--api-key-file FILE", "file with the API key to send with every call", Path)
    add("--in-flight N", "queries at a time", count, 4)
    add("--timeout-s S", "timeout of a query", positive, 600.0)

    add = flag_group(parser, "figures")
    meaning = "an ir_measures name, such as AP(rel=2) (RR, nDCG@10, nDCG@20, P@10, P@20 and AP)"
    add("--measure NAME", meaning, repeated=True)
    meaning = "judged: a query without a ranking counts 0; ranked: only queries that all runs have"
    add("--average-over", meaning, choices=("judged", "ranked"), default="judged")
    meaning = "level of the marks (%(default)g, as in the papers, but 0.01 for MS MARCO dev, FarRelevant)"
    add("--alpha P", meaning, share, 0.05)
    add("--resamples N", "resamples of randomisation", count, 9999)
    add("--seed N", "seed of randomisation", int, 0)
    add("--out FOLDER", "folder for runs, values and the table", Path)
    add("--resume", "continue the runs that the folder holds, under the same flags")


def run(args: argparse.Namespace) -> int:
    """Rerank the test set, evaluate it, print the table.

    Raises: CommandError or LoadtestError if it cannot be done; ModuleNotFoundError without the extra.
    """
    if args.combine:
        return _combine(args)
    from farrank_loadtest.accuracy.accuracy_report import REPORT, RUNS, render, write_folder
    from farrank_loadtest.accuracy.evaluation import EvaluationSettings, evaluate_models
    from farrank_loadtest.accuracy.selection import SELECTOR
    from farrank_loadtest.accuracy.test_set import (
        RETRIEVER,
        Model,
        at_depths,
        parse_baselines,
        parse_models,
        read_test_set,
    )
    from farrank_loadtest.kept_files import new_folder
    from farrank_trec.measures import DEFAULT_MEASURES, parse_measures

    # Every check comes before the calls, because they may take hours.
    models = parse_models(args.models)
    _check_flags(args)
    models, fulls = at_depths(models, args.depths, _not_adaptive(args, models))
    if args.selector is not None:
        models.append(Model(SELECTOR))
    names = [*([] if args.evaluate_only else [RETRIEVER]), *(each.name for each in models)]
    settings = EvaluationSettings(
        test_set=args.test_set,
        measures=parse_measures(args.measure or DEFAULT_MEASURES),
        baselines=parse_baselines(args.baseline, names),
        fulls=fulls | parse_baselines(args.full, names, "full"),
        alpha=args.alpha,
        resamples=args.resamples,
        seed=args.seed,
        ranked_only=args.average_over == "ranked",
    )
    test_set = read_test_set(
        models,
        qrels=args.qrels,
        candidates=args.candidates,
        queries=args.queries,
        query_field=args.query_field,
        k=args.k,
    )
    if args.out is not None:
        new_folder(args.out, *(() if args.resume else (REPORT, RUNS)))
    if args.selector is not None:
        test_set = _with_selector(args, test_set)
    reranked = None if args.evaluate_only else _rerank(args, models, test_set)
    if not test_set.qrels:
        return DONE
    given = {name: value for name, value in vars(args).items() if value and name not in ("command", "test")}
    flags = json.loads(json.dumps(given, default=str))
    report, evaluated = evaluate_models(
        test_set.qrels,
        reranked.runs if reranked else test_set.runs,
        settings,
        notes=[*test_set.notes, *(reranked.notes if reranked else ())],
        inputs={"flags": flags, "versions": reranked.versions if reranked else {}},
    )
    if args.out is not None:
        write_folder(args.out, report, evaluated)
    print(render([report]), end="")
    return DONE


def _check_flags(args: argparse.Namespace) -> None:
    asks = any(kind == "ranker" for kind, _ in args.models)
    if not args.models:
        raise CommandError("nothing to compare: give --ranker or --run (or --combine)")
    if args.evaluate_only and asks:
        raise CommandError("--evaluate-only calls no server: leave out --ranker, or name runs with --run")
    if args.evaluate_only and not args.qrels:
        raise CommandError("--evaluate-only: needs --qrels")
    if args.evaluate_only:
        if args.depths or args.selector is not None or args.resume:
            raise CommandError("--evaluate-only calls no server: leave out --depth, --selector and --resume")
        return
    if not asks:
        raise CommandError("give --ranker to rerank with, or --evaluate-only to evaluate only --run")
    if args.out is None:
        raise CommandError("--ranker: needs --out for the runs")
    if bool(args.candidates) == (args.index is not None):
        raise CommandError("--ranker: give either --candidates with --collection, or --index")
    if not args.queries or (args.candidates and not args.collection):
        raise CommandError("--ranker: needs --queries, and --candidates needs --collection")
    if args.index is not None and (args.selector is not None or args.resume):
        raise CommandError(
            "--selector and --resume need --candidates: with --index the server finds documents"
        )


def _not_adaptive(args: argparse.Namespace, models: list[Model]) -> Collection[str]:
    """Ask the server which rankers cannot be adaptive, if a depth is."""
    from farrank_loadtest.depths import is_adaptive
    from farrank_loadtest.targets.address import not_adaptive

    if not any(map(is_adaptive, args.depths)):
        return ()
    rankers = dict.fromkeys(ranker for model in models for ranker in model.rankers)
    key = None if args.api_key_file is None else read_key(args.api_key_file)
    return run_interruptible(not_adaptive(args.target, rankers, args.timeout_s, args.allow_remote, key))


def _with_selector(args: argparse.Namespace, test_set: TestSet) -> TestSet:
    """Add the selector's runs; documents without text are left out if --skip-missing allows it."""
    from farrank_loadtest.accuracy.selection import SELECTOR, selector_run
    from farrank_loadtest.workloads.recorded import calls_of_run

    parts = [calls_of_run(part.candidates, part.queries, args.collection)[0] for part in test_set.parts]
    runs = [selector_run(args.selector, calls) for calls in parts]
    return replace(test_set, runs={**test_set.runs, SELECTOR: [runs]})


def _maker(args: argparse.Namespace, progress: Progress) -> RunMaker:
    from farrank_loadtest.accuracy.accuracy_report import RUNS
    from farrank_loadtest.accuracy.reranking import RunMaker

    def begun(tag: str, queries: int) -> Callable[[int], None]:
        progress.begin(f"queries reranked by {tag}", queries)
        return progress

    key = None if args.api_key_file is None else read_key(args.api_key_file)
    server = (args.target, args.allow_remote, args.in_flight, args.timeout_s)
    return RunMaker(*server, args.out / RUNS, begun, args.index, args.k, args.resume, api_key=key)


def _rerank(args: argparse.Namespace, models: list[Model], test_set: TestSet) -> RerankedRuns:
    from farrank_loadtest.accuracy.reranking import rerank_models

    progress = Progress("queries")
    maker = _maker(args, progress)
    reranking = rerank_models(
        maker, models, test_set, collection=args.collection, skip_missing=args.skip_missing
    )
    try:
        return run_interruptible(reranking)
    finally:
        progress.end()
        for path, queries, of in maker.kept:
            reached = f"{queries:,}" if queries == of else f"only {queries:,} of {of:,}"
            print(f"{path}: {reached} queries", file=sys.stderr)


def _combine(args: argparse.Namespace) -> int:
    from farrank_loadtest.accuracy.accuracy_report import Report, render

    if args.models or args.qrels or args.out is not None:
        raise CommandError(
            "--combine: prints only a table of the reports; leave out --ranker, --run, --qrels, --out"
        )
    print(render([Report.read_json(path) for path in args.combine]), end="")
    return DONE
