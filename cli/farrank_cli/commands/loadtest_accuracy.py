"""`farrank loadtest accuracy`: rerank a test set by several rankers and compare them as the papers do."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from farrank_cli.accuracy_flags import add_accuracy_flags
from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.progress import Progress
from farrank_cli.terminated import run_interruptible

if TYPE_CHECKING:
    from farrank_loadtest.accuracy.evaluation import EvaluationSettings
    from farrank_loadtest.accuracy.experiment import Reranked
    from farrank_loadtest.accuracy.models import Model
    from farrank_loadtest.accuracy.parts import TestSet
    from farrank_loadtest.accuracy.sweep import Sweep

# The farrank_loadtest imports are local: the flags and their help need no extra.
configure = add_accuracy_flags


def run(args: argparse.Namespace) -> int:
    """Rerank what is asked for, evaluate it, print the table.

    Raises: CommandError or LoadtestError if it cannot be done; ModuleNotFoundError without the extra.
    """
    if args.combine:
        return _combine(args)
    from farrank_loadtest.accuracy.evaluation import evaluate_models
    from farrank_loadtest.accuracy.experiment import gather
    from farrank_loadtest.accuracy.folder import prepare_folder, write_folder
    from farrank_loadtest.accuracy.models import parse_models
    from farrank_loadtest.accuracy.parts import TestSetFiles, read_test_set
    from farrank_loadtest.accuracy.table import render

    # Whatever can be wrong is found before the first call: what follows may take hours.
    models = parse_models(args.models)
    _check_flags(args)
    settings = _settings(args, models)
    files = TestSetFiles(args.qrels, args.candidates, args.queries, args.query_field, args.k)
    test_set = read_test_set(files, models)
    if args.out is not None:
        prepare_folder(args.out, for_runs=not args.evaluate_only)
    reranked = None if args.evaluate_only else _rerank(args, models, test_set)
    if not test_set.qrels:
        return DONE
    report, evaluated = evaluate_models(
        test_set.qrels,
        gather(models, test_set.runs, reranked),
        settings,
        notes=[*test_set.notes, *(reranked.notes if reranked else ())],
        inputs={"flags": _plain(vars(args)), "versions": reranked.versions if reranked else {}},
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
        raise CommandError("--evaluate-only asks no server: leave out --ranker, or name runs with --run")
    if args.evaluate_only and not args.qrels:
        raise CommandError("--evaluate-only: needs --qrels")
    if args.evaluate_only:
        return
    if not asks:
        raise CommandError("give --ranker to rerank by, or --evaluate-only to evaluate --run as it is")
    if args.out is None:
        raise CommandError("--ranker: needs --out, where the runs go")
    if bool(args.candidates) == (args.index is not None):
        raise CommandError("--ranker: give either --candidates with --collection, or --index")
    if not args.queries or (args.candidates and not args.collection):
        raise CommandError("--ranker: needs --queries, and --candidates needs --collection")


def _settings(args: argparse.Namespace, models: list[Model]) -> EvaluationSettings:
    from farrank_loadtest.accuracy.evaluation import EvaluationSettings
    from farrank_loadtest.accuracy.measures import DEFAULT_MEASURES, parse_measures
    from farrank_loadtest.accuracy.models import RETRIEVER, parse_baselines

    names = [*([] if args.evaluate_only else [RETRIEVER]), *(each.name for each in models)]
    return EvaluationSettings(
        test_set=args.test_set,
        measures=parse_measures(args.measure or DEFAULT_MEASURES),
        baselines=parse_baselines(args.baseline, names),
        alpha=args.alpha,
        resamples=args.resamples,
        seed=args.seed,
        ranked_only=args.average_over == "ranked",
    )


def _rerank(args: argparse.Namespace, models: list[Model], test_set: TestSet) -> Reranked:
    from farrank_loadtest.accuracy.experiment import FirstStage, rerank_models
    from farrank_loadtest.accuracy.folder import RUNS
    from farrank_loadtest.accuracy.sweep import Sweep, SweepSettings

    progress = _SweepProgress()
    sweep = Sweep(
        SweepSettings(args.target, args.allow_remote, args.in_flight, args.timeout_s, args.out / RUNS),
        progress,
    )
    first_stage = FirstStage(args.collection, args.skip_missing, args.index, args.k)
    try:
        return run_interruptible(rerank_models(sweep, models, test_set.parts, first_stage))
    finally:
        progress.end()
        _tell_kept(sweep)


def _tell_kept(sweep: Sweep) -> None:
    for kept in sweep.kept:
        count = f"{kept.queries:,}" if kept.queries == kept.of else f"only {kept.queries:,} of {kept.of:,}"
        print(f"{kept.path}: {count} queries", file=sys.stderr)


def _combine(args: argparse.Namespace) -> int:
    from farrank_loadtest.accuracy.report import Report
    from farrank_loadtest.accuracy.table import render

    if args.models or args.qrels or args.out is not None:
        raise CommandError(
            "--combine: prints a table of the reports alone; leave out --ranker, --run, --qrels, --out"
        )
    print(render([Report.read_json(path) for path in args.combine]), end="")
    return DONE


def _plain(flags: dict[str, Any]) -> dict[str, Any]:
    """Keep the flags that were given a value, as JSON can hold them."""
    kept = {name: value for name, value in flags.items() if value and name not in ("command", "test")}
    return {
        name: [str(each) if not isinstance(each, tuple) else list(each) for each in value]
        if isinstance(value, list)
        else value
        if isinstance(value, int | float)
        else str(value)
        for name, value in kept.items()
    }


class _SweepProgress:
    """Shows how many queries a ranker is through; a new line of counts for each ranker."""

    def __init__(self) -> None:
        self._ranker = ""
        self._shown = Progress("")

    def __call__(self, ranker: str, done: int, of: int) -> None:
        if ranker != self._ranker:
            self._shown.end()
            self._ranker, self._shown = ranker, Progress(f"of {of:,} queries reranked by {ranker}")
        self._shown(done)

    def end(self) -> None:
        self._shown.end()
