"""Train and test on the folds of a collection, for each seed, and measure all test queries together."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.configuration import TrainingConfig
from farrank_training.folds import Fold
from farrank_training.groups import TrainingSet
from farrank_training.reports import Interrupts, NoInterrupts, SilentWatcher, Watcher
from farrank_training.training_run import FinishedRun, put_run, train
from farrank_training.validation import ValidationSet, rerank
from farrank_trec import Run, read_run
from farrank_trec.measures import DEFAULT_MEASURES

TEST_RUN = "test.trec"


def cross_validate(
    make_ranker: Callable[[int], Ranker],
    training_set: Callable[[Fold], TrainingSet],
    queries: ValidationSet,
    folds: Sequence[Fold],
    config: TrainingConfig,
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    resume: bool = False,
    cpu: bool = False,
    watcher: Watcher | None = None,
    interrupts: Interrupts | None = None,
) -> list[FinishedRun]:
    """Train one ranker for each fold and seed, in `out/fold-K/seed-N`, and rerank the fold's test queries.

    Each folder's test.trec ranks the fold's test queries; `out/seed-N.trec` joins the folds. The result has
    one entry a seed, with the measures of all test queries and the sum of the folds' steps.
    Raises: as `train`.
    """
    watcher, interrupts = watcher or SilentWatcher(), interrupts or NoInterrupts()
    tests: dict[int, Run] = {seed: {} for seed in seeds}
    steps = dict.fromkeys(seeds, 0)
    for fold in folds:
        training = training_set(fold)
        for seed in seeds:
            folder = out / f"fold-{fold.number}" / f"seed-{seed}"
            trained = train(
                make_ranker(seed),
                training.of_seed(seed),
                config,
                folder,
                seed=seed,
                name=f"fold {fold.number}, seed {seed}",
                validation=queries.only(fold.validation),
                resume=resume,
                cpu=cpu,
                watcher=watcher,
                interrupts=interrupts,
            )
            steps[seed] += trained.steps
            if not (folder / TEST_RUN).is_file():
                test = queries.only(fold.test)
                gpu = torch.cuda.is_available() and not cpu
                ranker = open_ranker(folder, device=torch.device("cuda") if gpu else None)
                watcher.begin(f"test queries of fold {fold.number}", len(test.candidates))
                run = rerank(ranker, test, config, progress=lambda count: watcher(count))
                watcher.end()
                put_run(folder / TEST_RUN, run)
            else:
                run = read_run(folder / TEST_RUN)
            tests[seed] |= run
    names = list(dict.fromkeys([config.measure, *DEFAULT_MEASURES]))
    all_tests = queries.only({query_id for fold in folds for query_id in fold.test})
    found = []
    for seed, run in tests.items():
        put_run(out / f"seed-{seed}.trec", run)
        found.append(FinishedRun(out, seed, 0, steps[seed], all_tests.measure(run, names)))
    return found
