"""How a ranker is trained: every setting with its default, its limits and what it means.

The defaults are those of Boytsov et al., arXiv 2207.01262, where the paper states them. This module does not
import torch: the command line derives its flags from it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from farrank_rankers.errors import SourceError
from farrank_rankers.json_values import parse_json, read_fields, read_text, read_value
from farrank_training.errors import TrainingError

Loss = Literal["hinge", "ranknet", "cross-entropy", "contrastive", "margin-mse", "kl"]
KlScores = Literal["min-max", "raw"]
Precision = Literal["fp32", "bf16"]
Depth = Literal["all", "adaptive"]


def _at_least(least: float) -> Callable[[Any], str]:
    return lambda value: "" if value >= least else f"at least {least:g}"


def _above_0(value: Any) -> str:
    return "" if value > 0 else "above 0"


def _share(value: Any) -> str:
    return "" if 0 <= value < 1 else "at least 0 and below 1"


def _decay(value: Any) -> str:
    return "" if 0 < value <= 1 else "above 0 and at most 1"


class SettingRule(NamedTuple):
    """The meaning of a setting, and a check that gives the limit in words if a value is outside it."""

    meaning: str
    limit: Callable[[Any], str] = lambda value: ""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """All that determines a run apart from the ranker it starts from, the data and the seed.

    A group is a query with one relevant document and `negatives` others; a step reads `batch_size` ×
    `accumulation` groups over all processes. None leaves a setting out.
    Raises: TrainingError naming setting, value and limit.
    """

    loss: Annotated[Loss, SettingRule("the loss to minimise")] = "hinge"
    margin: Annotated[float, SettingRule("lead of a relevant document that hinge asks for", _above_0)] = 1.0
    score_scale: Annotated[
        float,
        SettingRule(
            "factor of the scores before the loss, 1 / temperature; 20 for a bi-encoder's cosines", _above_0
        ),
    ] = 1.0
    kl_scores: Annotated[
        KlScores, SettingRule("scores that kl compares with a teacher's: both from 0 to 1 in a group, or raw")
    ] = "min-max"
    negatives: Annotated[int, SettingRule("documents drawn for each relevant one", _at_least(1))] = 1
    negatives_from: Annotated[
        int, SettingRule("number of first candidates of each query to draw negatives from", _at_least(1))
    ] = 100
    epochs: Annotated[int, SettingRule("times that every query is read", _at_least(1))] = 1
    batch_size: Annotated[int, SettingRule("groups that are encoded at once", _at_least(1))] = 1
    accumulation: Annotated[int, SettingRule("batches a step", _at_least(1))] = 16
    backbone_learning_rate: Annotated[float, SettingRule("learning rate of the backbone", _at_least(0))] = (
        1e-5
    )
    learning_rate: Annotated[float, SettingRule("learning rate of all other weights", _at_least(0))] = 1e-4
    weight_decay: Annotated[float, SettingRule("weight decay of AdamW", _at_least(0))] = 1e-7
    warmup: Annotated[
        float, SettingRule("share of an epoch's steps in which the rates rise before they stay", _share)
    ] = 0.2
    epoch_decay: Annotated[float, SettingRule("factor of the rates after each epoch", _decay)] = 0.95
    document_tokens: Annotated[
        int | None,
        SettingRule(
            "tokens of a document that training and validation read; without it the ranker's own limit, or "
            "the papers' 1,431 if it has none",
            _at_least(1),
        ),
    ] = None
    depth: Annotated[
        Depth,
        SettingRule("all chunks, or adaptive: those that the server would choose of whole documents"),
    ] = "all"
    max_chunks: Annotated[
        int | None, SettingRule("chunks of a document that training reads", _at_least(1))
    ] = None
    trained_layers: Annotated[
        int | None, SettingRule("number of the backbone's last layers that learn; others stay", _at_least(0))
    ] = None
    lora_rank: Annotated[
        int | None, SettingRule("rank of LoRA differences; of the backbone only they learn", _at_least(1))
    ] = None
    lora_alpha: Annotated[int, SettingRule("the differences are scaled by alpha / rank", _at_least(1))] = 16
    lora_learning_rate: Annotated[float, SettingRule("learning rate of the differences", _at_least(0))] = 2e-4
    precision: Annotated[
        Precision, SettingRule("precision of the encoder; the aggregator computes in fp32")
    ] = "fp32"
    gradient_checkpointing: Annotated[
        bool, SettingRule("compute the backbone's layers twice to keep less in memory")
    ] = False
    measure: Annotated[
        str, SettingRule("measure of the validation queries that chooses the best weights, as in ir_measures")
    ] = "RR"
    validate_every: Annotated[
        int | None, SettingRule("steps between validations; without it an epoch", _at_least(1))
    ] = None
    dev_depth: Annotated[int, SettingRule("candidates of a validation query to rerank", _at_least(1))] = 100
    patience: Annotated[
        int | None, SettingRule("training ends after this many validations without improvement", _at_least(1))
    ] = None
    checkpoint_every: Annotated[
        int, SettingRule("steps between checkpoints, from which --resume goes on", _at_least(1))
    ] = 100
    log_every: Annotated[int, SettingRule("steps between lines of log.jsonl", _at_least(1))] = 10
    workers: Annotated[int, SettingRule("processes that read and tokenize ahead", _at_least(0))] = 0

    def __post_init__(self) -> None:
        """Check every setting's type and limit."""
        for name, hint, setting in settings():
            value = read_value(hint, getattr(self, name), name, TrainingError)
            object.__setattr__(self, name, value)
            if value is not None and (wanted := setting.limit(value)):
                raise TrainingError(f"{name} is {value}; it must be {wanted}")
        if self.depth == "adaptive" and self.document_tokens is not None:
            raise TrainingError(
                f"document_tokens is {self.document_tokens}; it must be none with adaptive depth, "
                "which chooses from whole documents"
            )
        if self.negatives_from < self.negatives:
            raise TrainingError(
                f"negatives_from is {self.negatives_from}; it must be at least the {self.negatives} negatives"
            )

    def accumulation_of(self, processes: int) -> int:
        """Batches that each process reads in a step.

        Raises: TrainingError if the processes cannot share a step's batches equally.
        """
        if self.accumulation % processes:
            raise TrainingError(
                f"accumulation is {self.accumulation}; "
                f"it must be a multiple of the {processes} processes that share a step"
            )
        return self.accumulation // processes

    @property
    def digest(self) -> str:
        """Hash of all settings, 16 hexadecimal digits."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def with_changes(self, changes: Mapping[str, Any]) -> "TrainingConfig":
        """Change some settings. Raises: TrainingError naming setting, value and limit."""
        return replace(self, **changes)

    @classmethod
    def read(
        cls, path: Path, defaults: "Callable[[Mapping[str, Any]], TrainingConfig] | None" = None
    ) -> "TrainingConfig":
        """Read settings from a .json, .yaml or .yml file; missing settings have their defaults.

        `defaults` makes these of the file's settings, which are not checked yet.
        Raises: TrainingError naming the file, and the setting that is unknown or out of its limits.
        """
        try:
            tree = _tree(path)
            if defaults is not None and isinstance(tree, dict):
                tree = asdict(defaults(tree)) | tree
            return read_fields(cls, tree, "the file", TrainingError)
        except (TrainingError, SourceError) as error:
            text = str(error)
            raise TrainingError(text if text.startswith(str(path)) else f"{path}: {text}") from error


def settings() -> Iterator[tuple[str, Any, SettingRule]]:
    """Give every setting's name, type and meaning."""
    types = get_type_hints(TrainingConfig)
    for name, annotated in get_type_hints(TrainingConfig, include_extras=True).items():
        yield name, types[name], annotated.__metadata__[0]


def _tree(path: Path) -> Any:
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise TrainingError(f"{path}: settings must be in a .json, .yaml or .yml file")
    if path.suffix == ".json":
        return parse_json(path)
    import yaml

    try:
        tree = yaml.safe_load(read_text(path))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise TrainingError(f"{path}{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise TrainingError(f"{path}: not YAML: {error}") from error
    return {} if tree is None else _with_exponents(tree)


def _with_exponents(tree: Any) -> Any:
    """Read 1e-5 as a number: YAML 1.1 takes it for a string because it has no dot."""
    if not isinstance(tree, dict):
        return tree
    hints = get_type_hints(TrainingConfig)
    read = dict(tree)
    for name, value in tree.items():
        if hints.get(name) is float and isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number):
                read[name] = number
    return read
