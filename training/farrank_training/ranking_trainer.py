"""transformers' Trainer, with the papers' optimiser and schedule, for rankers.

This module replaces the Trainer's loss and its division, adds two learning rates, a fresh optimiser every
epoch, the order of the groups, validation by ranking, and checkpoints that a kill cannot damage.
The rest is the Trainer's: the loop, accumulation, processes that train together, resuming.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, Sampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback, PrinterCallback

from farrank_rankers.ranker import Ranker
from farrank_training import checkpoints
from farrank_training.batches import Collator
from farrank_training.chunk_subsets import check_depth
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import Group, TrainingSet
from farrank_training.losses import check_loss, group_loss, own_documents_first
from farrank_training.trained_weights import (
    choose_weights,
    hold_limits,
    leave_out_unread,
    optimizer_groups,
)

# Measures the ranker as it is now.
Validate = Callable[[Ranker], float]


class RankingTrainer(Trainer):  # type: ignore[misc]  # untyped
    """Train a ranker on groups of texts; the ranker is changed in place.

    `folder` holds the checkpoints. `validate` gives a measure, where higher is better; `on_best` is called
    with the step at each new maximum, before the run goes on. `should_stop` is called after each step: if it
    returns True, a checkpoint is written and training ends, `interrupted`.
    Raises: TrainingError if the settings do not fit the ranker, the data or the number of processes.
    """

    optimizer: Any
    lr_scheduler: Any
    control: Any

    def __init__(
        self,
        ranker: Ranker,
        training_set: TrainingSet,
        config: TrainingConfig,
        folder: Path,
        *,
        seed: int = 0,
        cpu: bool = False,
        validate: Validate | None = None,
        on_best: Callable[[int], None] = lambda step: None,
        should_stop: Callable[[], bool] = lambda: False,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        self.config, self.folder, self.seed = config, folder, seed
        self.validate, self.on_best, self.should_stop = validate, on_best, should_stop
        self.interrupted = False
        self.documents = 0  # trained on by this process, in this run
        check_depth(ranker, config)
        check_loss(ranker.spec, config)
        self._loss = group_loss(config.loss, config.margin, config.kl_scores)
        # All queries of a batch meet all its documents.
        self._crossed = config.loss == "contrastive"
        choose_weights(ranker, config, seed)
        first = Collator(ranker.reader, max_chunks=2)([training_set.group(0, 0)])
        # Missing teacher's scores must raise before anything is written.
        self._loss(torch.zeros(1, first["sizes"][0]), first["teacher"])
        self.unread = leave_out_unread(ranker, first)
        arguments = _arguments(config, folder, seed, cpu)
        arguments.gradient_accumulation_steps = config.accumulation_of(arguments.world_size)
        super().__init__(
            model=ranker,
            args=arguments,
            data_collator=Collator(
                ranker.reader,
                config.max_chunks,
                config.document_tokens,
                draws=seed if config.depth == "adaptive" else None,
                crossed=self._crossed,
            ),
            train_dataset=_Groups(training_set),
            callbacks=[_Flow(self), *(callbacks or [])],
        )
        self.remove_callback(DefaultFlowCallback)
        self.remove_callback(PrinterCallback)
        # Makes the Trainer count a step's groups and leave the division to `compute_loss`.
        self.model_accepts_loss_kwargs = True

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, known once training has begun."""
        return int(self.state.max_steps) // self.config.epochs

    def create_optimizer(self) -> torch.optim.Optimizer:
        """Make AdamW with one rate for the backbone and one for all other weights."""
        if self.optimizer is None:
            self.optimizer = AdamW(
                optimizer_groups(self.model, self.config),
                weight_decay=self.config.weight_decay,
                fused=self.args.device.type in ("cpu", "cuda"),
            )
        made: torch.optim.Optimizer = self.optimizer
        return made

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LambdaLR:
        """Make the schedule: rates rise at the beginning of each epoch and decay from epoch to epoch."""
        if self.lr_scheduler is None:
            steps, config = num_training_steps // self.config.epochs, self.config
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda step: rate_factor(step, steps, config)
            )
            self._created_lr_scheduler = True
        scheduler: LambdaLR = self.lr_scheduler
        return scheduler

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Give a batch's part of the mean over the groups of a step."""
        lower = self.config.precision == "bf16"
        # The ranker itself keeps its aggregator in fp32.
        with torch.autocast(self.args.device.type, torch.bfloat16) if lower else nullcontext():
            scores = model(inputs["batch"], inputs["counts"], inputs["query"], crossed=self._crossed)
        groups = len(inputs["sizes"])
        self.documents += len(inputs["counts"])
        scores = scores.view(groups, -1) * self.config.score_scale  # (B, 1 + n), crossed (B, D)
        if self._crossed:
            scores = own_documents_first(scores, inputs["competing"])
        # The other processes also wait for the gradients of a batch that does not count: they are 0.
        loss = self._loss(scores, inputs["teacher"]).sum() * bool(inputs["counted"])
        # DDP averages the processes' gradients, but each process has only its part of the sum.
        shared: Tensor = loss * self.args.world_size / num_items_in_batch
        return shared

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        """Count the groups of a step over all processes."""
        if not batch_samples:
            return None
        groups = torch.tensor(sum(each["counted"] for each in batch_samples), device=device)
        return self.accelerator.gather(groups).sum() if self.args.world_size > 1 else groups

    def _get_train_sampler(self, train_dataset: Any = None) -> "_Shuffled":
        processes = self.args.world_size
        return _Shuffled(
            len(self.train_dataset),
            self.seed,
            multiple_of=1 if processes == 1 else processes * self.config.batch_size,
        )

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validate; keep the weights if they are the best so far; end training if patience has run out.

        A checkpoint is written first, so a run that is killed during validation validates again.
        """
        assert self.validate is not None
        self._save_checkpoint(self.model, None)
        device = self.args.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            value = self.validate(self.model)
        step, state = self.state.global_step, self.state
        if state.best_metric is None or value > state.best_metric:
            state.best_metric, state.best_global_step = value, step
            if self.args.should_save:
                checkpoints.keep_best(self.folder, step)
                self.on_best(step)
        self.log({self.config.measure: value})
        self.control = self.callback_handler.on_evaluate(self.args, state, self.control, {})
        self.control.should_training_stop |= self.out_of_patience
        self._save_checkpoint(self.model, None)
        if self.args.should_save:
            checkpoints.forget_best(self.folder, but=state.best_global_step)
        return {self.config.measure: value}

    @property
    def validations(self) -> list[tuple[int, float]]:
        """The validated steps and their measures."""
        name = self.config.measure
        return [(each["step"], each[name]) for each in self.state.log_history if name in each]

    @property
    def out_of_patience(self) -> bool:
        """Whether `patience` validations passed since the best one."""
        patience, best = self.config.patience, self.state.best_global_step
        return patience is not None and sum(step > (best or 0) for step, _ in self.validations) >= patience

    def validation_is_due(self) -> bool:
        """Whether to validate after the last step made."""
        step = self.state.global_step
        every = self.config.validate_every or self.steps_per_epoch
        return self.validate is not None and (step % every == 0 or step == self.state.max_steps)

    def train_on(self, checkpoint: Path | None = None) -> None:
        """Train to the end, from a checkpoint if given."""
        if checkpoint is not None:
            self.state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
            checkpoints.read_into(self.model, checkpoint)
            if self.validation_is_due() and self.state.global_step not in dict(self.validations):
                self.evaluate()
            if self.out_of_patience or self.state.global_step >= self.state.max_steps:
                return
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        checkpoints.read_into(self.model, Path(resume_from_checkpoint))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint that is complete or absent; if the step has one, replace only its state."""
        step, saves = self.state.global_step, self.args.should_save
        place = checkpoints.step_folder(self.folder, step)
        there = place.is_dir()
        self.accelerator.wait_for_everyone()
        if there:
            if saves:
                checkpoints.write_text(place / checkpoints.STATE, self._state_text())
            return
        staging = checkpoints.staged(self.folder) if saves else self.folder / "unfinished"
        self.accelerator.wait_for_everyone()
        if saves:
            checkpoints.write_weights(self.model, staging)
            self._save_optimizer_and_scheduler(str(staging))
            (staging / checkpoints.STATE).write_text(self._state_text(), encoding="utf-8")
        self._save_rng_state(str(staging))
        self.accelerator.wait_for_everyone()
        if saves:
            checkpoints.put_in_place(staging, step)
        self.accelerator.wait_for_everyone()

    def _state_text(self) -> str:
        path = self.folder / "unfinished.json"
        self.state.save_to_json(str(path))
        return path.read_text(encoding="utf-8")

    def stop_asked(self) -> bool:
        """Whether any process should stop: all must end after the same step."""
        asked = self.should_stop()
        if self.args.world_size == 1:
            return asked
        told = torch.tensor(float(asked), device=self.args.device)
        return bool(self.accelerator.gather(told).sum())


def rate_factor(step: int, steps_per_epoch: int, config: TrainingConfig) -> float:
    """Give the factor of the learning rates at a step, counted from 0.

    It rises during the first steps of each epoch, is never 0, and then stays.
    """
    epoch, within = divmod(step, steps_per_epoch)
    rising = math.ceil(config.warmup * steps_per_epoch)
    return float(config.epoch_decay**epoch * min(1.0, (within + 1) / (rising + 1)))


def _arguments(config: TrainingConfig, folder: Path, seed: int, cpu: bool) -> TrainingArguments:
    on_cpu = cpu or not torch.cuda.is_available()
    # transformers 5 renamed `gradient_checkpointing` and warns about the old name.
    checkpointing = "activation_checkpointing"
    if not hasattr(TrainingArguments, checkpointing):
        checkpointing = "gradient_checkpointing"
    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=seed,
        per_device_train_batch_size=config.batch_size,
        num_train_epochs=config.epochs,
        max_grad_norm=0.0,  # the papers clip nothing; the Trainer would at 1
        ddp_find_unused_parameters=False,
        # Without other processes a named backend would make the Trainer wait for them.
        ddp_backend="gloo" if on_cpu and "WORLD_SIZE" in os.environ else None,
        use_cpu=on_cpu,
        dataloader_num_workers=config.workers,
        dataloader_pin_memory=not on_cpu,
        remove_unused_columns=False,
        # `_Flow` says when to log, validate and save.
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        # Show a NaN loss as NaN.
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        **{checkpointing: config.gradient_checkpointing},
    )
    # Reading `device` sets it up and counts the GPUs. Without torchrun one GPU trains.
    assert arguments.device is not None
    arguments._n_gpu = min(arguments._n_gpu, 1)
    return arguments


class _Groups(Dataset[Group]):
    """Groups by epoch and index, the same in every process; −1 is a group that does not count."""

    def __init__(self, training_set: TrainingSet) -> None:
        self.training_set = training_set

    def __len__(self) -> int:
        return len(self.training_set)

    def __getitem__(self, place: tuple[int, int]) -> Group:
        epoch, index = place
        group = self.training_set.group(max(index, 0), epoch)
        return replace(group, epoch=epoch, counted=index >= 0)


class _Shuffled(Sampler[tuple[int, int]]):
    """Pairs of epoch and index, in an order that depends on the seed and the epoch alone.

    Indices of −1 fill them up to a multiple: accelerate would fill up the processes' last batches with groups
    of the epoch's beginning, which would count twice.
    """

    def __init__(self, count: int, seed: int, multiple_of: int = 1) -> None:
        self.count, self.seed, self.epoch = count, seed, 0
        self.filling = -count % multiple_of

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the Trainer calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count + self.filling

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # A separate generator, so that other draws do not depend on when this order was made.
        order = list(range(self.count))
        Random(f"{self.seed} {self.epoch}").shuffle(order)
        return iter([(self.epoch, index) for index in order + [-1] * self.filling])


class _Flow(TrainerCallback):  # type: ignore[misc]  # untyped
    """Decides what follows a step, and clears the optimiser at the beginning of each epoch."""

    def __init__(self, trainer: RankingTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        # A run that resumes within an epoch keeps its optimiser's state.
        if state.global_step % self.trainer.steps_per_epoch == 0:
            objects["optimizer"].state.clear()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        hold_limits(self.trainer.model)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        loss = objects["logs"].get("loss", 0.0)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss of the steps up to {state.global_step} is {loss}: training diverged; "
                "lower learning_rate and backbone_learning_rate"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        trainer, step = self.trainer, state.global_step
        last = step >= state.max_steps
        control.should_log = last or step % trainer.config.log_every == 0
        control.should_save = last or step % trainer.config.checkpoint_every == 0
        control.should_evaluate = trainer.validation_is_due()
        control.should_training_stop |= last
        if not last and trainer.stop_asked():
            trainer.interrupted = True
            control.should_save, control.should_evaluate, control.should_training_stop = True, False, True
