"""The experiment's steps in order, and the work of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property, partial
from hashlib import file_digest
from pathlib import Path
from typing import Any, Literal

import torch

from farrank_experiments.asking import Values, ask, by_aggregators, read_values, write_values
from farrank_experiments.contenders import (
    CONTENDERS,
    Contender,
    contender_ranker,
    opened,
    passage_ranker,
    passage_ranker_of,
    save_head,
)
from farrank_experiments.heads import on_vectors, train_head
from farrank_experiments.pairs import KeptVectors, PairFeatures, encoded_by, write_vectors
from farrank_experiments.questions import (
    BIASED,
    FAR,
    AskedQuestion,
    natural_questions,
    test_questions,
    training_questions,
)
from farrank_experiments.settings import Settings
from farrank_experiments.source_articles import PASSAGES, QUESTIONS, MadeData, make_data
from farrank_experiments.steps import Step, StepFolders
from farrank_experiments.token_heads import KeptTokens, by_tokens
from farrank_rankers.aggregate import Aggregator
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker, weights_digest
from farrank_rankers.reader import Reader
from farrank_training.training_run import train
from farrank_training.training_set import judged_set
from farrank_trec.errors import InputError

# Heads on a frozen encoder, or heads trained together with it.
Track = Literal["frozen", "whole"]
# The collection that a ranker was trained on last: Far follows Biased.
STAGES = (BIASED, FAR)
_VECTORS = "vectors.safetensors"
_RANKER = "ranker"


class ExperimentPlan:
    """All steps of one experiment, with the folders of their results.

    The contenders in `whole` are also trained together with their encoder. `tell` gets the progress messages
    of a step. Raises: InputError if a file of SQuAD is missing; RankerError or TrainingError if the encoder
    in the settings cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        squad: Path,
        folders: StepFolders,
        contenders: Sequence[Contender],
        whole: Sequence[Contender],
        tell: Callable[[str], None],
    ) -> None:
        self.settings, self.folders, self.contenders, self.tell = settings, folders, contenders, tell
        given = asdict(settings)
        of_data = {name: given[name] for name in ("backbone", "pretrained", "windows", "articles", "seed")}
        checksums = {name: _checksum(squad / name) for name in (PASSAGES, QUESTIONS)}
        self.data = Step(
            "data", "Biased and Far from SQuAD", lambda folder: make_data(squad, settings, folder),
            {**of_data, **checksums},
        )  # fmt: skip
        of_passages = {
            name: given[name] for name in ("passage_questions", "triples", "passages", "natural_chunks")
        }
        if settings.encoder is None:
            self.passages = Step(
                "passages", "The passage cross-encoder", self._train_passages, of_passages, [self.data]
            )
        else:
            ranker = passage_ranker_of(settings.encoder, settings)
            self.passages = Step(
                "passages",
                f"The encoder of {settings.encoder}",
                lambda folder: save_ranker(ranker, folder / _RANKER),
                # The number of the encoder's questions determines which questions the rankers get.
                {**of_passages, "encoder": weights_digest(ranker.encoder.backbone)},
                [self.data],
            )
        sizes = (
            "triples", "negatives", "distractors", "test_questions", "position_questions",
            "natural_questions", "natural_candidates", "natural_chunks",
        )  # fmt: skip
        self._of_questions = {name: given[name] for name in sizes}
        self.vectors = Step(
            "vectors", "Its vectors of all pairs", self._write_vectors, self._of_questions, [self.passages]
        )
        self.heads: dict[str, Step] = {
            each.name: Step(
                f"frozen-{each.name}",
                f"{each.title} on vectors, {settings.seeds} seeds",
                partial(self._train_heads, each),
                {"heads": given["heads"], "seeds": settings.seeds},
                [self.vectors],
            )
            for each in contenders
            if each.has_vectors
        }
        of_tokens = {**self._of_questions, **{n: given[n] for n in ("token_triples", "token_heads")}}
        self.tokens = Step(
            "tokens", "Its token vectors to learn from", self._write_tokens, of_tokens, [self.passages]
        )
        token_heads = {
            each.name: Step(
                f"frozen-{each.name}",
                f"{each.title} on token vectors, {settings.seeds} seeds",
                partial(self._train_token_heads, each),
                {"heads": given["token_heads"], "seeds": settings.seeds},
                [self.tokens],
            )
            for each in contenders
            if not each.has_vectors
        }
        self.heads |= token_heads
        self.token_answers = Step(
            "asked-tokens",
            "Those that read token vectors: asked",
            self._ask_token_heads,
            {**self._of_questions, "token_questions": settings.token_questions},
            list(token_heads.values()),
        )
        self.whole: dict[tuple[str, str, int], Step] = {}
        self.answers: dict[tuple[str, str, int], Step] = {}
        for contender in whole:
            for seed in range(settings.whole_seeds):
                self._add_whole(contender, seed, given["whole"])

    def _add_whole(self, contender: Contender, seed: int, training: Mapping[str, Any]) -> None:
        before = self.heads[contender.name]
        asked = {**self._of_questions, "whole_questions": self.settings.whole_questions}
        for stage in STAGES:
            key = contender.name, stage, seed
            title = f"{contender.title}, encoder and all, on {stage.capitalize()}"
            title += f", seed {seed}" if self.settings.whole_seeds > 1 else ""
            trained = Step(
                f"whole-{contender.name}-{stage}-{seed}",
                title,
                partial(self._train_whole, contender, stage, seed),
                {"whole": dict(training), "triples": self.settings.whole_triples},
                [before],
            )
            self.whole[key] = trained
            self.answers[key] = Step(
                f"asked-{contender.name}-{stage}-{seed}",
                f"{title}: asked",
                partial(self._ask_whole, contender, key),
                asked,
                [trained],
            )
            before = trained

    def steps(self) -> Iterable[Step]:
        """Give all steps in order: cheap and informative ones come first."""
        yield from (self.data, self.passages)
        vectors = [self.heads[each.name] for each in self.contenders if each.has_vectors]
        tokens = [self.heads[each.name] for each in self.contenders if not each.has_vectors]
        if vectors:
            yield from (self.vectors, *vectors)
        if tokens:
            yield from (self.tokens, *tokens, self.token_answers)
        for key, trained in self.whole.items():
            yield trained
            yield self.answers[key]

    def results(self) -> dict[Track, dict[str, dict[str, list[Values]]]]:
        """Read the results: the values of every seed by track, contender and stage."""
        found: dict[Track, dict[str, dict[str, list[Values]]]] = {"frozen": {}, "whole": {}}
        for contender in self.contenders:
            asked = self.heads[contender.name] if contender.has_vectors else self.token_answers
            values = read_values(self.folders.of(asked))
            found["frozen"][contender.name] = {
                stage: [values[_head(contender, stage, seed)] for seed in range(self.settings.seeds)]
                for stage in STAGES
            }
            if (contender.name, BIASED, 0) in self.answers:
                found["whole"][contender.name] = {
                    stage: [
                        read_values(self.folders.of(self.answers[contender.name, stage, seed]))[stage]
                        for seed in range(self.settings.whole_seeds)
                    ]
                    for stage in STAGES
                }
        return found

    def frozen_ranker(self, contender: Contender, stage: str, seed: int) -> Ranker:
        """Open a contender with its trained head of a stage. Raises: OSError if it was not trained."""
        head = self._head_file(contender, stage, seed)
        return contender_ranker(contender, self._passage_folder, self.settings, seed, head)

    def asked_vectors(self) -> Iterator[tuple[PairFeatures, list[AskedQuestion]]]:
        """Give the questions to ask, with their vectors of the frozen encoder."""
        kept = KeptVectors(self.folders.of(self.vectors) / _VECTORS)
        for name, questions in self._asked.items():
            yield kept.of(name, questions), questions

    def _head_file(self, contender: Contender, stage: str, seed: int) -> Path:
        return self.folders.of(self.heads[contender.name]) / f"{stage}-{seed}.safetensors"

    # The work of the steps.

    @property
    def made(self) -> MadeData:
        """The files of the data step."""
        return MadeData(self.folders.of(self.data))

    @property
    def _passage_folder(self) -> Path:
        return self.folders.of(self.passages) / _RANKER

    def _train_passages(self, folder: Path) -> None:
        settings, made = self.settings, self.made
        chosen, _ = made.question_ids(settings)
        split = made.split(BIASED, "train")
        groups = judged_set(split.queries, split.qrels, made.key_run, [made.key_passages], query_ids=chosen)
        ranker = passage_ranker(settings.backbone, settings)
        train(ranker, groups, settings.passages, folder / _RANKER, seed=settings.seed, resume=True)

    @cached_property
    def _reader(self) -> Reader:
        """A reader for whole articles and passages; the passage ranker's own reads only a first window."""
        maxp = Contender("maxp", "MaxP", "maxp")
        return contender_ranker(maxp, self._passage_folder, self.settings, seed=0).reader

    @cached_property
    def _asked(self) -> dict[str, list[AskedQuestion]]:
        return {
            "test": test_questions(self.made, self._reader, self.settings),
            "natural": natural_questions(self.made, self._reader, self.settings),
        }

    @cached_property
    def _learned_from(self) -> list[AskedQuestion]:
        _, chosen = self.made.question_ids(self.settings)
        return training_questions(self.made, self._reader, self.settings, chosen)

    def _write_vectors(self, folder: Path) -> None:
        ranker = _placed(open_ranker(self._passage_folder))
        asked = {"train": self._learned_from, **self._asked}
        features = encoded_by(ranker, lower_precision=self._lower_precision)
        write_vectors(folder / _VECTORS, features, asked, self._tell_within)

    @property
    def _lower_precision(self) -> bool:
        return self.settings.whole.precision == "bf16"

    def _train_heads(self, contender: Contender, folder: Path) -> None:
        settings = self.settings
        kept = KeptVectors(self.folders.of(self.vectors) / _VECTORS)
        learning = self._learned_from
        vectors = kept.of("train", learning)
        aggregators: dict[str, Aggregator[Any]] = {}
        for seed in range(settings.seeds):
            ranker = contender_ranker(contender, self._passage_folder, settings, seed)
            for stage in STAGES:
                scores = on_vectors(ranker.aggregator, vectors, stage)
                loss = train_head(ranker, scores, learning, settings.heads, seed)
                self._tell_within(f"seed {seed}, {stage}: loss {loss:.3f}")
                save_head(ranker, self._head_file(contender, stage, seed))
                aggregators[_head(contender, stage, seed)] = deepcopy(ranker.aggregator)
        values: dict[str, Values] = {name: {} for name in aggregators}
        for asked, questions in self.asked_vectors():
            for head, reached in ask(by_aggregators(aggregators, asked), questions).items():
                values[head] |= reached
        write_values(folder, values)

    @cached_property
    def _token_features(self) -> PairFeatures:
        """The vectors of every token in all layers, from an encoder that all token readers share."""
        cedr = contender_ranker(CONTENDERS["cedr-knrm"], self._passage_folder, self.settings, seed=0)
        return encoded_by(_placed(cedr), lower_precision=self._lower_precision)

    def _write_tokens(self, folder: Path) -> None:
        learning = self._learned_from[: self.settings.token_triples]
        KeptTokens(folder).write(
            self._token_features, learning, self.settings.token_heads.epochs, self._tell_within
        )

    def _train_token_heads(self, contender: Contender, folder: Path) -> None:
        settings, kept = self.settings, KeptTokens(self.folders.of(self.tokens))
        learning = self._learned_from[: settings.token_triples]
        for seed in range(settings.seeds):
            ranker = contender_ranker(contender, self._passage_folder, settings, seed)
            for stage in STAGES:
                scores = kept.scores(ranker, stage)
                loss = train_head(ranker, scores, learning, settings.token_heads, seed)
                self._tell_within(f"seed {seed}, {stage}: loss {loss:.3f}")
                save_head(ranker, self._head_file(contender, stage, seed))

    def _ask_token_heads(self, folder: Path) -> None:
        rankers = {
            _head(contender, stage, seed): self.frozen_ranker(contender, stage, seed).eval()
            for contender in self.contenders
            if not contender.has_vectors
            for stage in STAGES
            for seed in range(self.settings.seeds)
        }
        scoring = by_tokens(rankers, self._token_features)
        values: dict[str, Values] = {name: {} for name in rankers}
        for questions in self._asked.values():
            some = questions[: self.settings.token_questions]
            for head, reached in ask(scoring, some, self._tell_within).items():
                values[head] |= reached
        write_values(folder, values)

    def _train_whole(self, contender: Contender, stage: str, seed: int, folder: Path) -> None:
        settings, made = self.settings, self.made
        if stage == BIASED:
            ranker = self.frozen_ranker(contender, BIASED, seed)
        else:
            before = self.whole[contender.name, BIASED, seed]
            ranker = opened(contender, self.folders.of(before) / _RANKER)
        _, chosen = made.question_ids(settings)
        split = made.split(stage, "train")
        groups = judged_set(
            split.queries,
            split.qrels,
            split.candidates,
            [split.collection],
            query_ids=chosen[: settings.whole_triples],
            seed=seed,
        )
        train(ranker, groups, settings.whole, folder / _RANKER, seed=seed, resume=True)

    def _ask_whole(self, contender: Contender, key: tuple[str, str, int], folder: Path) -> None:
        ranker = _placed(open_ranker(self.folders.of(self.whole[key]) / _RANKER))
        features = encoded_by(ranker, lower_precision=self._lower_precision)
        values: Values = {}
        for questions in self._asked.values():
            some = questions[: self.settings.whole_questions]
            if contender.reads_first:
                some = [each.first_passages() for each in some]
            scoring = by_aggregators({"it": ranker.aggregator}, features)
            values |= ask(scoring, some, self._tell_within)["it"]
        write_values(folder, {key[1]: values})

    def _tell_within(self, said: str) -> None:
        self.tell(f"    {said}")


def _head(contender: Contender, stage: str, seed: int) -> str:
    return f"{contender.name}/{stage}-{seed}"


def _placed(ranker: Ranker) -> Ranker:
    return ranker.to("cuda" if torch.cuda.is_available() else "cpu")


def _checksum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error} (--squad names the folder of SQuAD)") from error
