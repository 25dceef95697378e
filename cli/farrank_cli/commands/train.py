"""`farrank train`: train rankers on queries, documents and judgements, one per seed, and print a table."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from farrank_cli.commands import train_depth, train_teach
from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import add_commands, all_or_none, at_least, flag_group, listed, not_given
from farrank_cli.new_ranker import TOKENS, add_new_ranker_flags, make_new_ranker
from farrank_cli.terminal import Progress, print_columns
from farrank_cli.terminated import sigterm_interrupts
from farrank_cli.training_data import (
    add_training_data_flags,
    check_training_data,
    judged_flags,
    read_training_set,
    texts_flags,
)
from farrank_rankers.errors import RankerError
from farrank_training.checksums import is_stream
from farrank_training.configuration import TrainingConfig, settings
from farrank_training.errors import TrainingError
from farrank_training.papers_settings import papers_settings
from farrank_training.processes import is_first_process
from farrank_trec.errors import TrecError

if TYPE_CHECKING:
    from farrank_cli.terminated import PendingInterrupt
    from farrank_rankers.ranker import Ranker
    from farrank_rankers.spec import RankerSpec
    from farrank_training.training_run import FinishedRun
    from farrank_training.validation import ValidationSet

EPILOG = """\
examples:
  three seeds of PARADE Attn, the best weights of each by the dev queries' MRR:
    farrank train --family parade-attn --backbone bert-base-uncased --out runs/attn --seeds 0,1,2 \\
      --queries train.tsv --qrels train.qrels --candidates train.bm25.trec --collection docs.jsonl.gz \\
      --dev-queries dev.tsv --dev-qrels dev.qrels --dev-candidates dev.bm25.trec
  continue after a crash: the same command with --resume
  fine-tune an existing ranker, on five folds:
    farrank train --from runs/attn/seed-0 --out runs/robust --folds folds.json --epochs 100 \\
      --queries titles.tsv --qrels robust04.qrels --candidates robust04.trec --collection robust04.jsonl.gz
  on two GPUs: torchrun --nproc-per-node 2 -m farrank_cli train …
"""
_SEED = at_least(0, 2**32 - 1)
_MEASURES = "measures.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, and the subcommands that train nothing."""
    summaries = {
        "depth": "calibrate how much a ranker reads of whole documents, on judged queries",
        "teach": "write a ranker's scores of training documents, for others to learn from",
    }
    title, metavar = "instead of training", "[depth|teach]"
    actions = add_commands(parser, summaries, title=title, dest="action", metavar=metavar)
    train_depth.configure(actions["depth"])
    train_teach.configure(actions["teach"])
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = flag_group(parser, "ranker to train", "Either an existing ranker, or a new head on a backbone.")
    add("--from RANKER", "an artifact or another ranker to train further", dest="start")
    add_new_ranker_flags(add, required=False)

    add_training_data_flags(parser)

    add = flag_group(parser, "validation", "Keeps the best weights; without validation the last are kept.")
    add("--dev-queries FILE", "queries outside the training set", Path)
    add("--dev-qrels FILE", "their judgements", Path)
    add("--dev-candidates RUN", "their candidates, with texts in --collection", Path)
    meaning = "cross-validation: the number of parts of the queries, or a JSON list of lists of query ids"
    add("--folds N|FILE", meaning)

    add = flag_group(parser, "run")
    add("--out FOLDER", "folder in which each seed has its own folder", Path)
    add("--seeds N,…", "random seeds, one run each", listed(_SEED), "0")
    add("--resume", "continue interrupted runs; finished ones stay")
    add("--cpu", "train on the CPU, even if there is a GPU")

    meaning = (
        "The defaults are the papers'; multi-vector rankers have those of theirs "
        "(docs/how-to/training-multi-vector.md). "
        "--config sets any of them by name; flags override it."
    )
    add = flag_group(parser, "settings", meaning)
    add("--config FILE", ".json or .yaml: accumulation: 16", Path)
    defaults = TrainingConfig()
    for name, hint, setting in settings():
        _add_setting(add, name, hint, setting.meaning, getattr(defaults, name))


def _add_setting(add: partial[None], name: str, hint: Any, meaning: str, default: Any) -> None:
    form = f"--{name.replace('_', '-')}"
    if hint is bool:
        add(form, meaning)
        return
    shown = "" if default is None else f" ({default:g})" if isinstance(default, float) else f" ({default})"
    if get_origin(hint) is Literal:
        add(form, meaning + shown, choices=get_args(hint))
        return
    reads = next(kind for kind in (int, float, str) if kind is hint or kind in get_args(hint))
    add(f"{form} {'NAME' if reads is str else 'N' if reads is int else 'X'}", meaning + shown, reads)


def run(args: argparse.Namespace) -> int:
    """Train, and print the measures.

    Raises: CommandError if flags or files cannot be used; KeyboardInterrupt if interrupted.
    """
    if args.action == "depth":
        return train_depth.run(args)
    if args.action == "teach":
        return train_teach.run(args)
    _check_flags(args)
    with told_in_a_line(TrainingError, RankerError, TrecError, file=args.out):
        try:
            found = _train(args)
        except KeyboardInterrupt:
            if is_first_process():
                print(f"{args.out}: stopped; the same command with --resume continues", file=sys.stderr)
            raise
    if is_first_process():
        _tell(args.out, found)
    return DONE


def _config(args: argparse.Namespace, spec: RankerSpec) -> TrainingConfig:
    """Take the papers' settings for the ranker, overridden by those of --config, and these by flags.

    Raises: TrainingError naming setting, value and limit; CommandError if a flag has no effect.
    """
    from farrank_training.losses import check_loss

    def defaults(of_file: Mapping[str, Any]) -> TrainingConfig:
        return papers_settings(spec, args.loss or of_file.get("loss"))

    config = defaults({}) if args.config is None else TrainingConfig.read(args.config, defaults)
    given = {name: getattr(args, name) for name, _, _ in settings()}
    # A switch that is not given is False.
    config = config.with_changes(
        {name: value for name, value in given.items() if value is not None and value is not False}
    )
    if config.loss != "hinge":
        not_given({"--margin": args.margin}, "needs --loss hinge")
    if config.loss != "kl":
        not_given({"--kl-scores": args.kl_scores}, "needs --loss kl")
    if config.lora_rank is None:
        of_lora = {"--lora-alpha": args.lora_alpha, "--lora-learning-rate": args.lora_learning_rate}
        not_given(of_lora, "needs --lora-rank")
    if args.triples is not None and config.negatives != 1:
        raise TrainingError(f"negatives is {config.negatives}; --triples have 1 per line")
    check_loss(spec, config)
    return config


def _train(args: argparse.Namespace) -> list[FinishedRun]:
    from farrank_training.training_run import check_validation, train

    progress = Progress("steps") if is_first_process() else None
    with sigterm_interrupts() as interrupts:
        make_ranker = _ranker_maker(args)
        # Make the first ranker before the data is read, which may take long, to report its errors at once.
        first = [make_ranker(args.seeds[0])]
        config = _config(args, first[0].spec)
        check_validation(config, validated=args.folds is not None or args.dev_queries is not None)
        if args.folds is not None:
            first.clear()
            return _cross_validate(args, config, progress, interrupts)
        training_set = read_training_set(args, config.negatives, config.negatives_from)
        validation = None
        if args.dev_queries is not None:
            dev = (args.dev_queries, args.dev_qrels, args.dev_candidates)
            validation = _validation_set(args, config, *dev)
        return [
            train(
                first.pop() if first else make_ranker(seed),
                training_set.of_seed(seed),
                config,
                args.out / f"seed-{seed}",
                seed=seed,
                validation=validation,
                resume=args.resume,
                cpu=args.cpu,
                watcher=progress,
                interrupts=interrupts,
            )
            for seed in args.seeds
        ]


def _cross_validate(
    args: argparse.Namespace, config: TrainingConfig, progress: Progress | None, interrupts: PendingInterrupt
) -> list[FinishedRun]:
    from farrank_training.cross_validation import cross_validate
    from farrank_training.folds import divided, folds_of, read_parts

    queries = _validation_set(args, config, args.queries, args.qrels, args.candidates)
    judged = list(queries.qrels)
    number = _whole(args.folds)
    parts = read_parts(Path(args.folds), judged) if number is None else divided(judged, number)
    return cross_validate(
        _ranker_maker(args),
        lambda fold: read_training_set(args, config.negatives, config.negatives_from, fold.training),
        queries,
        folds_of(parts),
        config,
        args.out,
        seeds=args.seeds,
        resume=args.resume,
        cpu=args.cpu,
        watcher=progress,
        interrupts=interrupts,
    )


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _ranker_maker(args: argparse.Namespace) -> Callable[[int], Ranker]:
    """Return the function that makes a seed's ranker: an existing one, or one with a new head."""
    if args.start is None:
        return lambda seed: make_new_ranker(args, seed)
    from farrank_rankers.files.open import open_ranker

    limits = {name: getattr(args, name) for name in TOKENS}
    return lambda seed: open_ranker(args.start, download=args.download, **limits)


def _validation_set(
    args: argparse.Namespace, config: TrainingConfig, queries: Path, qrels: Path, candidates: Path
) -> ValidationSet:
    from farrank_training.validation import read_validation_set

    return read_validation_set(
        queries,
        qrels,
        candidates,
        args.collection,
        depth=config.dev_depth,
        query_field=args.query_field,
        fields=args.fields,
    )


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that do not fit together, before any file is read.

    Raises: CommandError naming them.
    """
    if args.out is None:
        raise CommandError("train: --out is missing; it names the folder in which each seed has its own")
    new = {"--family": args.family, "--backbone": args.backbone}
    if (args.start is None) == (None in new.values()):
        raise CommandError("train: give either --from, or --family with --backbone")
    only_new = new | {
        "--aggregator-backbone": args.aggregator_backbone,
        "--interaction-backbone": args.interaction_backbone,
        "--option": args.option or None,
        "--projection": args.projection,
        "--projection-texts": args.projection_texts,
        "--random-weights": args.random_weights or None,
        "--papers": args.papers or None,
    }
    if args.start is not None and (wrong := [name for name, value in only_new.items() if value is not None]):
        raise CommandError(f"{wrong[0]}: is only for a new ranker; --from has its own")

    is_judged = check_training_data(args, "train")
    dev = {
        "--dev-queries": args.dev_queries,
        "--dev-qrels": args.dev_qrels,
        "--dev-candidates": args.dev_candidates,
    }
    if args.folds is not None and (not is_judged or any(dev.values())):
        raise CommandError("--folds: divides the queries of --queries; leave out --dev-queries and the like")
    if any(value is not None for value in dev.values()):
        all_or_none(dev | {"--collection": args.collection or None})
    validated = args.folds is not None or any(value is not None for value in dev.values())
    if not is_judged and not validated:
        not_given(texts_flags(args), "needs --queries or --dev-queries")
    if not is_judged:
        not_given({"--negatives-from": args.negatives_from}, "needs --candidates")
    if not validated:
        of_validation = {
            "--measure": args.measure,
            "--validate-every": args.validate_every,
            "--dev-depth": args.dev_depth,
        }
        not_given(of_validation, "needs --dev-queries or --folds")
    read_again = [("--collection", each) for each in args.collection if validated]
    read_again += [*judged_flags(args).items()] if args.folds is not None else []
    for name, path in read_again:
        if is_stream(path):
            raise CommandError(
                f"{name} {path}: is read more than once; it cannot be standard input or a pipe"
            )
    if len(set(args.seeds)) != len(args.seeds):
        raise CommandError(f"--seeds {','.join(map(str, args.seeds))}: a seed appears twice")


def _tell(out: Path, found: Sequence[FinishedRun]) -> None:
    """Print a line for each run and the means over seeds, and write the same to measures.json."""
    from farrank_trec.measures import mean_name

    names = list(found[0].measures)
    rows = [
        [str(each.seed), str(each.best_step or ""), str(each.steps), *_figures(each.measures.values())]
        for each in found
    ]
    means = {name: statistics.fmean(each.measures[name] for each in found) for name in names}
    if len(found) > 1 and names:
        rows.append(["mean", "", "", *_figures(means.values())])
    print_columns(("seed", "best step", "steps", *map(mean_name, names)), rows)
    seeds = [
        {
            "seed": each.seed,
            "folder": str(each.folder),
            "best_step": each.best_step or None,  # folds have one each
            "steps": each.steps,
            "measures": dict(each.measures),
        }
        for each in found
    ]
    text = json.dumps({"seeds": seeds, "mean": means}, indent=2) + "\n"
    with told_in_a_line(file=out):
        (out / _MEASURES).write_text(text, encoding="utf-8")


def _figures(values: Iterable[float]) -> list[str]:
    return [f"{value:.4f}" for value in values]
