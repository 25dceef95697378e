"""Rankers to be trained, or measured where only speed matters."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farrank_rankers.aggregator_parts import find_parts, with_shapes
from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.chunking import Chunking
from farrank_rankers.default_chunking import adjusted
from farrank_rankers.derived_spec import default_options, fitted_spec
from farrank_rankers.errors import naming
from farrank_rankers.family import Options
from farrank_rankers.files.location import locate
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.files.tokenizer_files import TokenizerFiles
from farrank_rankers.files.transformers_weights import fill_backbone
from farrank_rankers.loading import build, fill_published
from farrank_rankers.overrides import Overrides
from farrank_rankers.position_budget import PositionBudget
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.spec import changed_options
from farrank_rankers.tokenizer import TextTokenizer


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
    parts = find_parts(family, sources, download=download)
    if not isinstance(options, Options):
        options = changed_options(default_options(family, facts), options or {})
    options = with_shapes(family, options, parts)
    provenance = {"model": location.name, "head": f"random, seed {seed}"}
    provenance |= {name: part.location.name for name, part in parts.items()}
    spec = fitted_spec(family, location.name, options, limits, PositionBudget(tokenizer, facts), provenance)
    chunking = adjusted(
        chunking or spec.chunking, window=window, stride=stride, max_document_tokens=max_document_tokens
    )
    spec = replace(spec, chunking=chunking)
    config = dict(files.config)
    if family == "cross-encoder":
        config.pop("num_labels", None)
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    ranker = build(Reader(spec, tokenizer, facts), config, seed)
    if pretrained:
        fill_published(ranker.encoder.backbone, files, new_head=family == "cross-encoder")
        for name, part in parts.items():
            fill_backbone(ranker.aggregator.get_submodule(f"{name}.bert"), part.files.transformer)
    ranker.aggregator.start_from(ranker.encoder.backbone, tokenizer.pair)
    return ranker
