"""Rankers with a random head, for training, or for measurements of speed."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import Options, TransformerShape, family_named
from farrank_rankers.files.answering_models import PROMPT_PARTS, find_prompt
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import ReadingLimits, fitted_spec, open_files, overridden, refuse_unknown
from farrank_rankers.files.weights import build, fill_backbone, fill_own, fill_published
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.spec import family_options

# Fixed properties of the aggregators' BERT, which a spec does not have: a checkpoint must match.
_BUILT_WITH = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "is_decoder": False,
}


def _shape(files: ModelFiles) -> TransformerShape:
    """Read a transformer's size from its config.json.

    Raises: SourceError naming the key and value that an aggregator cannot have.
    """
    config = transformers_config(files.config)
    for key, expected in _BUILT_WITH.items():
        found = getattr(config, key, expected)
        if found != expected:
            raise SourceError(
                f"config.json of {files.location.name}: {key} is {found!r}; "
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
    options: Options | Mapping[str, Any] | None = None,
    aggregator_backbone: str | Path | None = None,
    interaction_backbone: str | Path | None = None,
    download: bool = False,
    **limits: Unpack[ReadingLimits],
) -> Ranker:
    """Put a family's untrained head on a backbone: a folder, a hub name, or "embedded".

    The folder needs config.json and tokenizer files. Its weights are used unless `pretrained` is false; all
    other weights are random and depend only on the seed. `options` are the family's, or changes of its
    defaults. A cross-encoder gets one label. The transformers of an aggregator may each have a folder or name
    (PARADE's `aggregator_backbone`, late interaction's `interaction_backbone`), for their size and weights.
    Raises: SourceError, WeightsError or SpecError, each naming the problem; TypeError for an unknown limit.
    """
    refuse_unknown(limits, ReadingLimits)
    files, budget = open_files(backbone, download=download)
    # By the option with its size; the aggregator's module has the same name.
    parts: dict[str, ModelFiles] = {}
    for option, keyword, source in (
        ("transformer", "aggregator_backbone", aggregator_backbone),
        ("interaction", "interaction_backbone", interaction_backbone),
    ):
        if source is None:
            continue
        if option not in {field.name for field in fields(family_named(family).options)}:
            raise SpecError(
                f"{keyword} is {str(source)!r}; it must be none: family {family} has no such transformer"
            )
        parts[option] = ModelFiles.find(locate(source, download=download))
    if not isinstance(options, Options):
        preset: Options | None = None
        if files.kind == "yes-no" and family_named(family).prompted:
            preset = find_prompt(files.folder, files.config, budget.tokenizer, PROMPT_PARTS).options
        options = family_options(family, budget.backbone, options, preset)
    options = replace(options, **{name: _shape(part) for name, part in parts.items()})
    name = files.location.name
    provenance = {"model": name, "head": f"random, seed {seed}"}
    provenance |= {option: part.location.name for option, part in parts.items()}
    spec = fitted_spec(family, name, options, limits, budget, provenance)
    spec = overridden(replace(spec, chunking=chunking or spec.chunking), limits, budget)
    config = dict(files.config)
    classifier = family_named(family).classifier
    if classifier:
        config.pop("num_labels", None)
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    ranker = build(Reader(spec, budget.tokenizer, budget.backbone), config, seed)
    if pretrained:
        if files.kind == "difference":
            raise SourceError(
                f"{backbone} is a trained ranker, kept as its difference from a model; a new head needs a "
                "backbone or a checkpoint of one"
            )
        fill_published(ranker.encoder.backbone, files, new_head=classifier)
        fill_own(ranker, files)
        for option, part in parts.items():
            fill_backbone(ranker.aggregator.get_submodule(f"{option}.bert"), part.transformer)
    ranker.aggregator.start_from(ranker.encoder.backbone, budget.tokenizer.pair)
    return ranker
