"""One run: it trains a ranker into a folder that can be served, and may be interrupted at any time.

During training the folder holds the state that a resumed run needs. At the end it is an artifact with
training.json, log.jsonl, TensorBoard's events and, with validation, dev.trec.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from farrank_rankers.files.save import save_ranker
from farrank_rankers.json_values import read_json
from farrank_rankers.package_versions import package_versions
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_training import checkpoints
from farrank_training.batches import placed_reader
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import TrainingSet
from farrank_training.lora import merge_lora
from farrank_training.processes import is_first_process
from farrank_training.ranking_trainer import RankingTrainer
from farrank_training.reports import Interrupts, NoInterrupts, Reports, SilentWatcher, Watcher, rewrite_log
from farrank_training.validation import ValidationSet, rerank
from farrank_trec import Run, read_run, write_run
from farrank_trec.measures import DEFAULT_MEASURES, parse_measures

REPORT = "training.json"
DEV_RUN = "dev.trec"
_BEGUN = "begun.json"
_CHECKPOINTS = "checkpoints"
# The packages whose versions can change the trained weights.
_PACKAGES = ("farrank", "torch", "transformers", "accelerate", "peft")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run: its folder, and the validation queries' measures by name, empty without validation.

    `best_step` is the step whose weights were kept; `steps` is the number of steps made.
    """

    folder: Path
    seed: int
    best_step: int
    steps: int
    measures: Mapping[str, float]


def train(
    ranker: Ranker,
    training_set: TrainingSet,
    config: TrainingConfig,
    folder: Path,
    *,
    seed: int = 0,
    name: str | None = None,
    validation: ValidationSet | None = None,
    resume: bool = False,
    cpu: bool = False,
    watcher: Watcher | None = None,
    interrupts: Interrupts | None = None,
) -> FinishedRun:
    """Train a ranker and write it into a new folder; the ranker itself becomes what was written.

    A ranker without a limit on a document's tokens stays without one; see `placed_reader`.
    The best validated weights are kept, or the last ones without validation. The watcher shows `name`. With
    `resume` an interrupted run continues to bit-identical weights, and a finished run is left as it is.
    Every process of `torchrun` calls this; the first writes.
    Raises: TrainingError if settings, data and ranker do not fit together, the folder is taken, or another
    run began there; InputError if a text can no longer be read; KeyboardInterrupt if the run was
    interrupted, after a checkpoint was written.
    """
    watcher, interrupts = watcher or SilentWatcher(), interrupts or NoInterrupts()
    check_validation(config, validated=validation is not None)
    if ranker.spec.chunk_positions is not None:
        ranker.reader = placed_reader(ranker.reader, config)
    begun = _beginning(ranker, training_set, config, seed)
    if resume and (folder / REPORT).is_file():
        _check_begun(begun, folder, folder / REPORT)
        _clean(folder)
        return read_trained(folder)
    places = folder / _CHECKPOINTS
    if resume and (folder / _BEGUN).is_file():
        _check_begun(begun, folder, folder / _BEGUN)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "" if resume else "; --resume goes on with a run that began there"
        raise TrainingError(f"{folder}: must be a new or an empty folder{hint}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # The first process writes at once; the others must have checked the folder before it does.
        torch.distributed.barrier()
    reports = Reports(folder, name or f"seed {seed}", watcher)

    def validate(current: Ranker) -> float:
        assert validation is not None
        watcher.begin("validation queries", len(validation.candidates))
        run = rerank(
            current, validation, config, should_stop=lambda: interrupts.came, progress=lambda n: watcher(n)
        )
        reports.begin_steps(trainer.state)
        latest.clear()
        latest.update(run)
        return validation.measure(run, [config.measure])[config.measure]

    latest: Run = {}
    trainer = RankingTrainer(
        ranker,
        training_set,
        config,
        places,
        seed=seed,
        cpu=cpu,
        validate=None if validation is None else validate,
        on_best=lambda step: put_run(folder / DEV_RUN, latest),
        should_stop=lambda: interrupts.came,
        callbacks=[reports],
    )
    reports.trainer = trainer
    writes = bool(trainer.args.should_save)
    checkpoint = checkpoints.last_checkpoint(places)
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.write_text(folder / _BEGUN, _text(begun))
        if checkpoint is not None:
            rewrite_log(folder, checkpoint / checkpoints.STATE)
        else:
            (folder / "log.jsonl").unlink(missing_ok=True)
    with interrupts.held(), closing(reports):
        trainer.train_on(checkpoint)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if trainer.state.best_global_step:
        checkpoints.read_best(ranker, places, trainer.state.best_global_step)
    if config.lora_rank is not None:
        merge_lora(ranker.encoder.backbone)
    for weight in ranker.parameters():
        weight.requires_grad_(True)
    ranker.eval().to("cpu")
    best_step = trainer.state.best_global_step or trainer.state.global_step
    measures: dict[str, float] = {}
    if validation is not None:
        names = list(dict.fromkeys([config.measure, *DEFAULT_MEASURES]))
        measures = validation.measure(read_run(folder / DEV_RUN), names)
    _name_origin(ranker, begun, config, best_step)
    if writes:
        save_ranker(ranker, folder)
        report = begun | {
            "best_step": best_step,
            "steps": trainer.state.global_step,
            "measures": measures,
            "validations": [{"step": step, config.measure: value} for step, value in trainer.validations],
            "never_read": trainer.unread,
            "documents_per_s": round(reports.documents_per_s, 2),
            "device": str(trainer.args.device),
            "processes": trainer.args.world_size,
            "notes": list(training_set.notes),
            "versions": package_versions(_PACKAGES),
        }
        checkpoints.write_text(folder / REPORT, _text(report))
    # Other processes may still read the best weights.
    trainer.accelerator.wait_for_everyone()
    if writes:
        _clean(folder)
    return FinishedRun(folder, seed, best_step, trainer.state.global_step, measures)


def check_validation(config: TrainingConfig, *, validated: bool) -> None:
    """Check the validation settings; `train` does so too, but only after the data was read.

    Raises: TrecError if the measure is unknown; TrainingError if patience is set without validation.
    """
    if validated:
        parse_measures([config.measure])
    elif config.patience is not None:
        raise TrainingError(f"patience is {config.patience}; without validation queries it must be none")


def _clean(folder: Path) -> None:
    """Delete the files that a finished run no longer needs."""
    (folder / _BEGUN).unlink(missing_ok=True)
    shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)


def read_trained(folder: Path) -> FinishedRun:
    """Read the report of a finished run.

    Raises: SourceError if its training.json cannot be read; TrainingError if it is no report.
    """
    report = read_json(folder / REPORT)
    try:
        return FinishedRun(
            folder,
            seed=int(report["seed"]),
            best_step=int(report["best_step"]),
            steps=int(report["steps"]),
            measures={str(name): float(value) for name, value in report["measures"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TrainingError(f"{folder / REPORT} is not a training report: {error!r}") from error


def _beginning(
    ranker: Ranker, training_set: TrainingSet, config: TrainingConfig, seed: int
) -> dict[str, Any]:
    """Give all that determines the outcome of a run: a resumed run must have begun with the same values."""
    return {
        "seed": seed,
        "settings": asdict(config),
        "started_from": {"version": ranker.version, "provenance": dict(ranker.spec.provenance)},
        "data": dict(training_set.checksums),
        "groups": len(training_set),
    }


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _check_begun(begun: Mapping[str, Any], folder: Path, path: Path) -> None:
    """Check that a resumed run began with these values.

    Raises: TrainingError naming the difference; SourceError if the file cannot be read.
    """
    known, now = read_json(path), json.loads(_text(begun))
    for name, value in now.items():
        before = known.get(name)
        if before == value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            key = next(each for each in {**value, **before} if value.get(each) != before.get(each))
            name, before, value = key, before.get(key), value.get(key)
        raise TrainingError(
            f"--resume {folder}: the run began with {name} {before!r}, but now it is {value!r}"
        )


def _name_origin(ranker: Ranker, begun: Mapping[str, Any], config: TrainingConfig, best_step: int) -> None:
    """Record the weights' origin in the spec; the version does not depend on it."""
    reader = ranker.reader
    trained = {
        "trained_from": begun["started_from"]["version"],
        "training_settings": config.digest,
        "training_data": ", ".join(f"{name} {digest[:16]}" for name, digest in begun["data"].items()),
        "training_seed": str(begun["seed"]),
        "best_step": str(best_step),
    }
    # The figures of a calibrated plan are those of other weights.
    depth = reader.spec.depth and replace(reader.spec.depth, figures=None)
    spec = replace(reader.spec, provenance=dict(reader.spec.provenance) | trained, depth=depth)
    ranker.reader = Reader(spec, reader.tokenizer, reader.backbone)


def put_run(path: Path, run: Run) -> None:
    """Write a run atomically; of processes that train together, only the first writes.

    Raises: InputError if the file cannot be written.
    """
    if not is_first_process():
        return
    unfinished = path.with_name(f"{path.name}.unfinished")
    write_run(unfinished, run, tag="farrank")
    unfinished.replace(path)
