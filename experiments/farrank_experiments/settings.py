"""All settings that determine the experiment's figures: its data, training and questions."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from farrank_training.configuration import Precision, TrainingConfig
from farrank_training.data_sets.window_documents import WindowOptions
from farrank_training.errors import TrainingError

# A ranker that reads nothing of the relevant passage ranks its document among these by chance.
CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """How heads are trained on the output of a frozen encoder; each epoch reads every question once.

    A head learns with each learning rate until `patience` epochs have not improved the MRR of held-out
    questions, for `most_epochs` at most.
    """

    most_epochs: int = 40
    patience: int = 5
    batch_size: int = 16
    learning_rates: tuple[float, ...] = (5e-4, 2e-3, 1e-2)
    warmup_epochs: float = 0.5
    margin: float = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the experiment.

    `passage_questions` questions train the passage cross-encoder that all rankers start from; `triples` other
    questions train the rankers, and `validation_questions` further ones decide when that ends. Heads are
    trained on its frozen encoder for `seeds` seeds. The first seed chooses the learning rate. Heads that read
    tokens learn from the first `token_triples` for a fixed time, and are asked the first `token_questions` of
    each kind. For `dose_seeds` seeds, one ranker is trained on each dose of bias with `dose_triples`. With
    the encoder, `whole_seeds` seeds are trained on the first `whole_triples` and asked the first
    `whole_questions`.
    In Far the candidates of a test question share `distractors` passages of other articles, so each is
    encoded once; so do those of training on vectors. `position_questions` are ranked with the relevant
    passage at every place. Rankers read an article's first `natural_chunks` windows. At most `articles`
    articles of each SQuAD split are used. Without `pretrained` the backbone has random weights. If `encoder`
    names a ranker, its encoder is used and no passage cross-encoder is trained.
    """

    backbone: str = "embedded"
    pretrained: bool = True
    encoder: str | None = None
    seed: int = 0
    windows: WindowOptions = field(
        default_factory=lambda: WindowOptions(most_chunks=8, candidates=CANDIDATES)
    )
    articles: int | None = None
    passage_questions: int = 4_500
    triples: int = 2_000
    validation_questions: int = 200
    token_triples: int = 120
    whole_triples: int = 1_500
    dose_triples: int = 700
    negatives: int = 2
    seeds: int = 5
    whole_seeds: int = 1
    dose_seeds: int = 3
    test_questions: int = 1_000
    token_questions: int = 40
    whole_questions: int = 120
    position_questions: int = 200
    distractors: int = 16
    natural_questions: int = 300
    natural_candidates: int = 8
    natural_chunks: int = 16
    passages: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            loss="ranknet",
            batch_size=16,
            accumulation=1,
            lora_rank=16,
            lora_alpha=32,
            lora_learning_rate=5e-4,
            learning_rate=1e-3,
            warmup=0.1,
            checkpoint_every=100,
        )
    )
    whole: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            batch_size=2,
            accumulation=4,
            backbone_learning_rate=2e-5,
            learning_rate=2e-4,
            warmup=0.1,
            checkpoint_every=20,
            trained_layers=3,
        )
    )
    heads: HeadSettings = field(default_factory=HeadSettings)
    token_heads: HeadSettings = field(
        default_factory=lambda: HeadSettings(most_epochs=5, batch_size=8, learning_rates=(1e-3,))
    )

    def in_precision(self, precision: Precision) -> "Settings":
        """Set the precision of all encoders."""
        change = {"precision": precision}
        passages, whole = self.passages.with_changes(change), self.whole.with_changes(change)
        return replace(self, passages=passages, whole=whole)

    def __post_init__(self) -> None:
        """Check the sizes against each other. Raises: TrainingError naming setting, value and limit."""
        if not 0 <= self.whole_seeds <= self.seeds:
            raise TrainingError(f"whole_seeds is {self.whole_seeds}; it must be 0 to the {self.seeds} seeds")
        for part, whole in (
            ("token_triples", "triples"),
            ("whole_triples", "triples"),
            ("dose_triples", "triples"),
            ("dose_seeds", "seeds"),
            ("token_questions", "test_questions"),
            ("whole_questions", "test_questions"),
        ):
            given, most = getattr(self, part), getattr(self, whole)
            if not 1 <= given <= most:
                raise TrainingError(f"{part} is {given}; it must be 1 to the {most:,} {whole}")

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a passage, which is a chunk."""
        return self.windows.chunk_tokens


def quick(backbone: str) -> Settings:
    """Give the smallest experiment that runs every step; its figures mean nothing."""
    fast = {"accumulation": 1, "batch_size": 4, "checkpoint_every": 4, "log_every": 1}
    return Settings(
        backbone=backbone,
        pretrained=False,
        windows=WindowOptions(
            chunk_tokens=48,
            most_chunks=4,
            candidates=6,
            distractor_articles=2,
            dev_articles=1,
        ),
        articles=10,
        passage_questions=24,
        triples=12,
        validation_questions=6,
        seeds=3,
        dose_seeds=2,
        dose_triples=8,
        whole_triples=8,
        negatives=2,
        test_questions=12,
        whole_questions=10,
        position_questions=6,
        distractors=8,
        natural_questions=6,
        natural_candidates=4,
        natural_chunks=5,
        passages=Settings().passages.with_changes(fast),
        whole=Settings().whole.with_changes({**fast, "trained_layers": 1}),
        heads=HeadSettings(most_epochs=2, patience=1, batch_size=4, learning_rates=(5e-4, 1e-2)),
        token_triples=8,
        token_questions=10,
        token_heads=HeadSettings(most_epochs=2, batch_size=4, learning_rates=(5e-4,)),
    )


def digest_of(*values: Any) -> str:
    """Hash JSON values to 16 hexadecimal digits. Raises: TypeError for other values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
