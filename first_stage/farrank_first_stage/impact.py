"""Learned token weights: a document's score sums the products of its token weights and the query's."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_calls.errors import InvalidArgument
from farrank_calls.fairness.reader_threads import ReaderThreads
from farrank_calls.telemetry.call_record import CallRecord
from farrank_first_stage.config import IndexConfig
from farrank_first_stage.kinds import CheckContext, Kind, StageContext
from farrank_first_stage.lucene_stage import LuceneStage, check_lucene
from farrank_settings.checked import must
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_rankers.tokenizer import TextTokenizer

UNIT = "unit"

# Weights become integers as in Anserini's SPLADE indexes: 5, the largest weight seen, becomes 256.
LARGEST_WEIGHT, LEVELS = 5, 256

# How far a caller may be ahead of its share of the stage's thread, in seconds of weighing.
QUANTUM_S = 0.05


@dataclass(frozen=True, slots=True)
class ImpactConfig(IndexConfig):
    """An index of impacts, the token weights of its collection.

    `query` is the source of a query's token weights. `unit` gives 1 to each, as in SPLADE-doc, and needs only
    a `tokenizer`, that of the documents' model: a folder with its tokenizer.json, or the source of a ranker
    with the same tokenizer (`embedded` has that of bert-base-uncased). Any other value is a masked language
    model, a folder or a hub name in the local cache, that weighs all tokens of its vocabulary as SPLADE does.
    """

    kind: str = field(default="impact", kw_only=True)
    path: Path
    query: str = must(UNIT, bool, f"{UNIT}, or a masked language model's folder")
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        """Check the settings also against each other."""
        IndexConfig.__post_init__(self)
        if self.query == UNIT and not self.tokenizer:
            raise ConfigError(
                "tokenizer: a value is required: the tokenizer of the model that made the impacts"
            )
        if self.query != UNIT and self.tokenizer is not None:
            raise ConfigError(f"tokenizer: is for query {UNIT}; the model {self.query!r} has its own")


class UnitWeights:
    """Weighs each token of a query 1, however often it occurs.

    Source: Formal et al., "SPLADE v2", 2021, SPLADE-doc.
    """

    def __init__(self, tokenizer: "TextTokenizer") -> None:
        self._tokenizer = tokenizer

    def weigh(self, query: str) -> Mapping[str, int]:
        """Weigh the tokens of a query."""
        encoded = self._tokenizer.tokenizer.encode(query, add_special_tokens=False)
        return dict.fromkeys(encoded.tokens, 1)


class MaskedLanguageModel:
    """Weighs the tokens of a vocabulary by a query's logits: the maximum over positions of log(1 + relu).

    Computed in fp32 on the CPU. Source: Formal et al., "SPLADE v2", 2021.
    Raises: SourceError or OSError if the folder holds no such model.
    """

    def __init__(self, folder: Path, tokenizer: "TextTokenizer") -> None:
        import torch

        from farrank_rankers.backbones.build_backbone import transformers_config
        from farrank_rankers.errors import SourceError
        from farrank_rankers.json_values import read_json
        from farrank_rankers.lean_transformers import transformers

        self._tokenizer = tokenizer
        self._model, found = transformers.AutoModelForMaskedLM.from_pretrained(
            folder,
            config=transformers_config(read_json(folder / "config.json")),
            dtype=torch.float32,  # otherwise transformers 5 takes the file's
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        if found["missing_keys"]:
            missing = ", ".join(sorted(found["missing_keys"])[:3])
            raise SourceError(f"{folder} lacks weights of a masked language model: {missing}")
        self._model.eval()
        self._most_tokens = getattr(self._model.config, "max_position_embeddings", None)

    def weigh(self, query: str) -> Mapping[str, int]:
        """Weigh the vocabulary for a query; tokens whose weight rounds to 0 are left out.

        Raises: InvalidArgument if the model cannot hold the query.
        """
        import torch

        encoded = self._tokenizer.tokenizer.encode(query)
        if self._most_tokens is not None and len(encoded.ids) > self._most_tokens:
            raise InvalidArgument(
                f"query: has {len(encoded.ids)} tokens; the model that weighs them reads at most "
                f"{self._most_tokens}"
            )
        ids = torch.tensor([encoded.ids])
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]  # (T, V)
            weights = torch.log1p(torch.relu(logits)).amax(dim=0)  # (V,)
            levels = torch.round(weights / LARGEST_WEIGHT * LEVELS).int()
            kept = levels.nonzero()[:, 0]
        tokens = map(self._tokenizer.tokenizer.id_to_token, kept.tolist())
        weighed = zip(tokens, levels[kept].tolist(), strict=True)
        # A model's vocabulary may be padded beyond its tokenizer's.
        return {token: level for token, level in weighed if token is not None}


class ImpactStage(LuceneStage):
    """The index of one `ImpactConfig`.

    Queries are weighed on the stage's own thread, one after the other, in the fair order of their accounts.
    """

    def __init__(self, config: ImpactConfig, context: StageContext) -> None:
        query = UNIT if config.query == UNIT else Path(config.query).name
        super().__init__(context, config.kind, config.path, {"by": "impact"}, f"impact(query={query})")
        self._config, self._key = config, context.key
        self._thread = ReaderThreads(1, QUANTUM_S, "farrank-impact")
        self._weights: UnitWeights | MaskedLanguageModel | None = None

    async def start(self) -> None:
        """Load the query weights. Raises: ConfigError if they cannot be loaded; as `LuceneStage.start`."""
        await super().start()
        loop = asyncio.get_running_loop()
        self._weights = await loop.run_in_executor(self._thread, _open_weights, self._key, self._config)

    async def stop(self) -> None:
        """End the thread and close the stores of the index."""
        await super().stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def query_of(self, query: str, timeout_s: float, call: CallRecord) -> Mapping[str, Any]:
        """Weigh the query's tokens."""
        assert self._weights is not None, "not started"
        weighing = self._thread.submit_for(call.account, partial(self._weights.weigh, query))
        return {"weights": await asyncio.wrap_future(weighing)}


def _open_weights(key: str, config: ImpactConfig) -> UnitWeights | MaskedLanguageModel:
    from farrank_rankers.errors import RankerError

    name = "tokenizer" if config.query == UNIT else "query"
    try:
        if config.tokenizer is not None:
            return UnitWeights(_open_tokenizer(config.tokenizer))
        return MaskedLanguageModel(_model_folder(config.query), _open_tokenizer(config.query))
    except (RankerError, OSError, ValueError) as error:
        raise ConfigError(f"{key}.{name}: {error}") from error


def _open_tokenizer(source: str) -> "TextTokenizer":
    from farrank_rankers.files.model_files import ModelFiles, locate
    from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles

    location = locate(source)
    bare = (location.folder / "tokenizer.json").is_file()
    return TextTokenizer(
        TokenizerFiles.read(location.folder if bare else ModelFiles.find(location).transformer)
    )


def _model_folder(source: str) -> Path:
    """Find a masked language model's folder. Raises: SourceError if the source is not one."""
    from farrank_rankers.errors import SourceError
    from farrank_rankers.files.model_files import locate
    from farrank_rankers.json_values import read_json

    folder = locate(source).folder
    names = read_json(folder / "config.json").get("architectures") or []
    if not any(str(name).endswith("ForMaskedLM") for name in names):
        listed = ", ".join(map(str, names)) or "none"
        raise SourceError(f"{folder / 'config.json'}: architectures are {listed}; one must be a ForMaskedLM")
    return folder


def _check(key: str, config: ImpactConfig, context: CheckContext) -> Iterator[str]:
    from farrank_rankers.errors import RankerError

    yield from check_lucene(key, config.path)
    name, source = ("tokenizer", config.tokenizer) if config.tokenizer else ("query", config.query)
    opens: Iterable[Any] = (_open_tokenizer,) if config.tokenizer else (_model_folder, _open_tokenizer)
    try:
        for each in opens:
            each(source)
    except (RankerError, OSError) as error:
        yield f"{key}.{name}: {error}"


IMPACT = Kind(ImpactConfig, ImpactStage, _check)
