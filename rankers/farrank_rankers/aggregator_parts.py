"""The pretrained transformers that some aggregators start from, found and measured."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import Options, family_named
from farrank_rankers.files.location import Location, locate
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.transformer_shape import TransformerShape

# What the aggregators' BERT is built with and a spec does not say: a checkpoint must agree.
_BUILT_WITH = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "is_decoder": False,
}


# By `new_ranker`'s keyword, the option that holds the size; the aggregator's module has the same name.
_OPTIONS = {"aggregator_backbone": "transformer", "interaction_backbone": "interaction"}


@dataclass(frozen=True, slots=True)
class AggregatorPart:
    """One transformer's files."""

    location: Location
    files: ModelFiles

    @property
    def shape(self) -> TransformerShape:
        """Read the size off config.json.

        Raises: SourceError naming the key that no aggregator can follow.
        """
        config = transformers_config(self.files.config)
        for key, expected in _BUILT_WITH.items():
            found = getattr(config, key, expected)
            if found != expected:
                raise SourceError(
                    f"config.json of {self.location.name}: {key} is {found!r}; "
                    f"the transformer of an aggregator has {expected!r}"
                )
        return TransformerShape(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            width=config.hidden_size,
            intermediate=config.intermediate_size,
            positions=config.max_position_embeddings,
            vocabulary=config.vocab_size,
        )


def find_parts(
    family: str, sources: Mapping[str, str | Path | None], *, download: bool
) -> dict[str, AggregatorPart]:
    """Find the transformers that keywords of `new_ranker` give, by the option that holds their size.

    Raises: SpecError if the family has no such option; SourceError if there is no model.
    """
    known = {field.name for field in fields(family_named(family).options)}
    parts = {}
    for keyword, source in sources.items():
        if source is None:
            continue
        name = _OPTIONS[keyword]
        if name not in known:
            raise SpecError(
                f"{keyword} is {str(source)!r}; it must be none: family {family} has no such transformer"
            )
        location = locate(source, download=download)
        parts[name] = AggregatorPart(location, ModelFiles.find(location.folder))
    return parts


def with_shapes(family: str, options: Options | None, parts: Mapping[str, AggregatorPart]) -> Options | None:
    """Give options the sizes of the transformers that were found."""
    if not parts:
        return options
    chosen = family_named(family).options() if options is None else options
    return replace(chosen, **{name: part.shape for name, part in parts.items()})
