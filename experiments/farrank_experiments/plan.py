"""The experiment's steps in order, and the work of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cached_property, partial
from hashlib import file_digest
from pathlib import Path
from typing import Any, Literal

import torch

from farrank_experiments.asking import Values, ask, by_aggregators, read_values, write_values
from farrank_experiments.contenders import (
    CONTENDERS,
    RAND,
    Contender,
    contender_ranker,
    opened,
    passage_ranker,
    passage_ranker_of,
)
from farrank_experiments.doses import DOSES, dosed
from farrank_experiments.heads import Learned, Place, held_out_mrr, in_bf16, on_vectors, train_head
from farrank_experiments.kept_heads import KeptHeads
from farrank_experiments.pairs import KeptVectors, PairFeatures, encoded_by, vectors_by, write_vectors
from farrank_experiments.questions import (
    BIASED,
    FAR,
    AskedQuestion,
    at_place,
    natural_questions,
    test_questions,
    training_questions,
    validation_questions,
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
            "triples", "validation_questions", "negatives", "distractors", "test_questions",
            "position_questions", "natural_questions", "natural_candidates",
            "natural_chunks",
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
        self.doses = Step(
            "frozen-doses",
            f"{CONTENDERS[RAND].title} on vectors, by bias, {settings.dose_seeds} seeds",
            self._train_doses,
            {**{name: given[name] for name in ("heads", "dose_triples", "dose_seeds")}, "doses": dict(DOSES)},
            [self.vectors],
        )
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
        if self.has_doses:
            yield self.doses
        if tokens:
            yield from (self.tokens, *tokens, self.token_answers)
        for key, trained in self.whole.items():
            yield trained
            yield self.answers[key]

    @property
    def has_doses(self) -> bool:
        """Whether the ranker that reads positions is one of the contenders."""
        return any(each.name == RAND for each in self.contenders)

    def dose_values(self) -> dict[str, list[Values]]:
        """Read the values of every seed by dose: with the relevant passage at every place."""
        values = read_values(self.folders.of(self.doses))
        seeds = range(self.settings.dose_seeds)
        return {dose: [values[f"{dose}-{seed}"] for seed in seeds] for dose in DOSES}

    def learned(self, contender: Contender, stage: str) -> list[Learned]:
        """Tell how the heads of every seed learned."""
        kept = KeptHeads(self.folders.of(self.heads[contender.name]))
        return [kept.learned(f"{stage}-{seed}") for seed in range(self.settings.seeds)]

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
        for name, questions in self._asked.items():
            yield self._vectors.of(name, questions), questions

    def _head_file(self, contender: Contender, stage: str, seed: int) -> Path:
        return KeptHeads(self.folders.of(self.heads[contender.name])).file(f"{stage}-{seed}")

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
        chosen = made.question_ids(settings).passages
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
        chosen = self.made.question_ids(self.settings).training
        return training_questions(self.made, self._reader, self.settings, chosen)

    @cached_property
    def _held_out(self) -> list[AskedQuestion]:
        chosen = self.made.question_ids(self.settings).validation
        return validation_questions(self.made, self._reader, self.settings, chosen)

    def _write_vectors(self, folder: Path) -> None:
        ranker = _placed(open_ranker(self._passage_folder))
        asked = {"train": self._learned_from, "validation": self._held_out, **self._asked}
        features = vectors_by(ranker, folder, lower_precision=self._lower_precision)
        write_vectors(folder / _VECTORS, features, asked, self._tell_within)

    @property
    def _lower_precision(self) -> bool:
        return self.settings.whole.precision == "bf16"

    def _train_heads(self, contender: Contender, folder: Path) -> None:
        heads, chosen = dict[str, Aggregator[Any]](), dict[str, float]()
        for seed in range(self.settings.seeds):
            ranker = contender_ranker(contender, self._passage_folder, self.settings, seed)
            for stage in STAGES:
                rate = chosen.get(stage)
                learned = self._train_head(folder, f"{stage}-{seed}", ranker, seed, stage, rate=rate)
                chosen.setdefault(stage, learned.learning_rate)
                heads[_head(contender, stage, seed)] = deepcopy(ranker.aggregator)
        values: dict[str, Values] = {name: {} for name in heads}
        for asked, questions in self.asked_vectors():
            for head, reached in ask(by_aggregators(heads, asked), questions).items():
                values[head] |= reached
        write_values(folder, values)

    def _train_head(
        self,
        folder: Path,
        name: str,
        ranker: Ranker,
        seed: int,
        stage: str,
        *,
        rate: float | None,
        place: Place | None = None,
        triples: int | None = None,
    ) -> Learned:
        """Train a head on vectors, with one rate or with the best of all, unless the folder has it."""
        settings = self.settings.heads
        if rate is not None:
            settings = replace(settings, learning_rates=(rate,))
        vectors = self._vectors.of("train", self._learned_from)
        held_out = held_out_mrr(
            ranker.aggregator, self._vectors.of("validation", self._held_out), self._held_out, stage, place
        )
        scores = on_vectors(ranker.aggregator, vectors, stage, place)
        train = partial(
            train_head,
            ranker,
            in_bf16(scores) if self._lower_precision else scores,
            self._learned_from[:triples],
            settings,
            seed,
            held_out,
            self._tell_within,
        )
        learned = KeptHeads(folder).trained(ranker, name, train)
        self._tell_within(f"{name}: {learned}")
        return learned

    def _train_doses(self, folder: Path) -> None:
        settings, heads = self.settings, dict[str, Aggregator[Any]]()
        for dose, share in DOSES.items():
            rate: float | None = None
            for seed in range(settings.dose_seeds):
                ranker = contender_ranker(CONTENDERS[RAND], self._passage_folder, settings, seed)
                learned = self._train_head(
                    folder, f"{dose}-{seed}", ranker, seed, BIASED,
                    rate=rate, place=dosed(share), triples=settings.dose_triples,
                )  # fmt: skip
                rate = learned.learning_rate
                heads[f"{dose}-{seed}"] = ranker.aggregator
        asked = self._asked["test"]
        vectors = self._vectors.of("test", asked)
        places = [at_place(place) for place in range(1, settings.windows.most_chunks + 1)]
        at_places = [
            replace(each, conditions={name: each.conditions[name] for name in places})
            for each in asked[: settings.position_questions]
        ]
        write_values(folder, ask(by_aggregators(heads, vectors), at_places, self._tell_within))

    @cached_property
    def _vectors(self) -> KeptVectors:
        return KeptVectors(self.folders.of(self.vectors) / _VECTORS)

    @cached_property
    def _token_features(self) -> PairFeatures:
        """The vectors of every token in all layers, from an encoder that all token readers share."""
        cedr = contender_ranker(CONTENDERS["cedr-knrm"], self._passage_folder, self.settings, seed=0)
        return encoded_by(_placed(cedr), lower_precision=self._lower_precision)

    def _write_tokens(self, folder: Path) -> None:
        learning = self._learned_from[: self.settings.token_triples]
        KeptTokens(folder).write(
            self._token_features, learning, self.settings.token_heads.most_epochs, self._tell_within
        )

    def _train_token_heads(self, contender: Contender, folder: Path) -> None:
        settings, kept = self.settings, KeptTokens(self.folders.of(self.tokens))
        learning = self._learned_from[: settings.token_triples]
        for seed in range(settings.seeds):
            ranker = contender_ranker(contender, self._passage_folder, settings, seed)
            for stage in STAGES:
                train = partial(
                    train_head, ranker, kept.scores(ranker, stage), learning, settings.token_heads, seed
                )
                learned = KeptHeads(folder).trained(ranker, f"{stage}-{seed}", train)
                self._tell_within(f"seed {seed}, {stage}: {learned}")

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
        chosen = made.question_ids(settings).training
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
        lower_precision = self._lower_precision
        if contender.has_vectors:
            features = vectors_by(ranker, folder, lower_precision=lower_precision)
        else:
            features = encoded_by(ranker, lower_precision=lower_precision)
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
