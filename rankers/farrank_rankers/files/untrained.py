"""Rankers with a random head: to be trained, or measured where only speed matters."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.chunking import Chunking, adjusted
from farrank_rankers.errors import SourceError, SpecError, naming
from farrank_rankers.family import Options, TransformerShape, family_named
from farrank_rankers.files.load import build, fill_published
from farrank_rankers.files.location import Location, locate
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.files.open import Overrides, default_options, fitted_spec
from farrank_rankers.files.weights import fill_backbone
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import PositionBudget, Reader
from farrank_rankers.spec import changed_options
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles

# How the aggregators' BERT is built, which a spec does not say: a checkpoint must agree.
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

# A pretrained transformer that an aggregator starts from.
_Part = tuple[Location, ModelFiles]


def _find_parts(family: str, sources: Mapping[str, str | Path | None], download: bool) -> dict[str, _Part]:
    """Find the transformers that keywords of `new_ranker` give, by the option that holds their size.

    Raises: SpecError if the family has no such option; SourceError if there is no model.
    """
    known = {field.name for field in fields(family_named(family).options)}
    parts = {}
    for keyword, source in sources.items():
        if source is None:
            continue
        if _OPTIONS[keyword] not in known:
            raise SpecError(
                f"{keyword} is {str(source)!r}; it must be none: family {family} has no such transformer"
            )
        location = locate(source, download=download)
        parts[_OPTIONS[keyword]] = location, ModelFiles.find(location.folder)
    return parts


def _shape(location: Location, files: ModelFiles) -> TransformerShape:
    """Read a transformer's size from its config.json.

    Raises: SourceError naming the key that an aggregator cannot have.
    """
    config = transformers_config(files.config)
    for key, expected in _BUILT_WITH.items():
        found = getattr(config, key, expected)
        if found != expected:
            raise SourceError(
                f"config.json of {location.name}: {key} is {found!r}; "
                f"the transformer of an aggregator has {expected!r}"
            )
    return TransformerShape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        width=config.hidden_size,
        intermediate=config.intermediate_size,
        positions=config.max_position_embeddings,
    )


def new_ranker(
    family: str,
    backbone: str | Path,
    chunking: Chunking | None = None,
    seed: int = 0,
    *,
    pretrained: bool = True,
    window: int | None = None,
    stride: int | None = None,
    max_document_tokens: int | None = None,
    max_query_tokens: int | None = None,
    pad_query_to: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    aggregator_backbone: str | Path | None = None,
    interaction_backbone: str | Path | None = None,
    download: bool = False,
) -> Ranker:
    """Put a family's untrained head on a backbone: a folder, a hub name, or "embedded".

    The folder needs config.json and tokenizer files. Its weights are used unless `pretrained` is false; all
    else is random and depends on the seed alone. `options` are the family's, or changes of its defaults. A
    cross-encoder gets one label. A family whose aggregator is made of transformers may be given a folder or
    name for each (PARADE's `aggregator_backbone`, late interaction's `interaction_backbone`), whose size and
    weights it takes.
    Raises: SourceError, WeightsError or SpecError, each naming what is wrong.
    """
    location = locate(backbone, download=download)
    with naming(location.folder):
        files = ModelFiles.find(location.folder)
        tokenizer = TextTokenizer(TokenizerFiles.read(files.transformer))
        facts = BackboneFacts.from_config(files.config)
    limits = Overrides(max_query_tokens=max_query_tokens, pad_query_to=pad_query_to)
    sources = {"aggregator_backbone": aggregator_backbone, "interaction_backbone": interaction_backbone}
    parts = _find_parts(family, sources, download)
    if not isinstance(options, Options):
        options = changed_options(default_options(family, facts), options or {})
    options = replace(options, **{name: _shape(*part) for name, part in parts.items()})
    provenance = {"model": location.name, "head": f"random, seed {seed}"}
    provenance |= {name: location.name for name, (location, _) in parts.items()}
    spec = fitted_spec(family, location.name, options, limits, PositionBudget(tokenizer, facts), provenance)
    chunking = adjusted(
        chunking or spec.chunking, window=window, stride=stride, max_document_tokens=max_document_tokens
    )
    spec = replace(spec, chunking=chunking)
    config = dict(files.config)
    classifier = family_named(family).classifier
    if classifier:
        config.pop("num_labels", None)
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    ranker = build(Reader(spec, tokenizer, facts), config, seed)
    if pretrained:
        fill_published(ranker.encoder.backbone, files, new_head=classifier)
        for name, (_, its_files) in parts.items():
            fill_backbone(ranker.aggregator.get_submodule(f"{name}.bert"), its_files.transformer)
    ranker.aggregator.start_from(ranker.encoder.backbone, tokenizer.pair)
    return ranker
