"""The compared rankers, all on the same encoder, each with the paper's figures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from farrank_experiments.kept_heads import fill_head
from farrank_experiments.settings import Settings
from farrank_rankers.chunking import Chunking
from farrank_rankers.family import ChunkingKind, family_named
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Contender:
    """A compared ranker.

    `zero_shot` and `tuned` are the paper's MRR on FarRelevant for BERT, before and after training there; None
    if the paper has no legible figure. With `has_vectors` the ranker reads one vector of each encoder input;
    without, it reads token vectors. `reads_positions` is false for a transformer whose position embeddings
    are 0 and do not learn. `stands_for` is a row of the paper whose ranker is identical here.
    Source: Boytsov et al., arXiv 2207.01262, Table 5.
    """

    name: str
    title: str
    family: str
    zero_shot: float | None = None
    tuned: float | None = None
    has_vectors: bool = True
    reads_positions: bool = True
    stands_for: tuple[str, float, float] | None = None

    @property
    def reads_first(self) -> bool:
        """Whether it reads only the first chunk of a document."""
        return family_named(self.family).chunking == "first"

    @property
    def paper_model(self) -> str | None:
        """Its name in `farrank rankers --papers`, which plots use; None if it is not listed."""
        if not self.reads_positions:
            return None
        return f"{self.family}-l2-bert" if self.family == "parade-transf-rand" else f"{self.family}-bert"


FIRSTP, AVGP, MAXP, ATTN, RAND, UNPLACED = (
    "firstp",
    "avgp",
    "maxp",
    "parade-attn",
    "parade-rand-l2",
    "parade-rand-l2-unplaced",
)
_ALL = (
    Contender(FIRSTP, "FirstP", "firstp", 0.016, 0.090),
    # If chunks do not overlap, AvgP and PARADE Avg are the same formula.
    Contender(AVGP, "AvgP", "avgp", 0.154, 0.365, stands_for=("PARADE Avg", 0.274, 0.322)),
    Contender(MAXP, "MaxP", "maxp", 0.297, 0.328),
    Contender("sump", "SumP", "sump", 0.211, 0.327),
    Contender("parade-max", "PARADE Max", "parade-max", 0.291, 0.330),
    Contender(ATTN, "PARADE Attn", "parade-attn", 0.300, 0.337),
    Contender(RAND, "PARADE Transf-RAND-L2", "parade-transf-rand", 0.243, 0.419),
    Contender(
        UNPLACED, "PARADE Transf-RAND-L2 without positions", "parade-transf-rand", reads_positions=False
    ),
    Contender("cedr-knrm", "CEDR-KNRM", "cedr-knrm", 0.055, None, has_vectors=False),
    Contender("cedr-pacrr", "CEDR-PACRR", "cedr-pacrr", 0.209, None, has_vectors=False),
    Contender("cedr-drmm", "CEDR-DRMM", "cedr-drmm", 0.157, 0.372, has_vectors=False),
    Contender("neural-model1", "Neural Model 1", "neural-model1", 0.085, 0.396, has_vectors=False),
)
CONTENDERS: Mapping[str, Contender] = {each.name: each for each in _ALL}


def chunking_of(family: str, settings: Settings) -> Chunking:
    """Cut documents between passages instead of the family's own way: a chunk is a passage.

    The limit of tokens is the longest document's length.
    """
    tokens = settings.chunk_tokens
    most = max(settings.windows.most_chunks, settings.natural_chunks)
    kind: ChunkingKind = "first" if family_named(family).chunking == "first" else "disjoint"
    return Chunking(kind, tokens, tokens, tokens * most)


def passage_ranker(backbone: str | Path, settings: Settings) -> Ranker:
    """Make the ranker that trains the common encoder: it scores a passage by its mean token vector."""
    chunking = chunking_of("firstp", settings)
    return new_ranker(
        "firstp",
        backbone,
        chunking,
        settings.seed,
        pretrained=settings.pretrained,
        options={"pooling": "mean"},
    )


def passage_ranker_of(encoder: str, settings: Settings) -> Ranker:
    """Make a passage ranker with the encoder of an existing ranker and a random head.

    Raises: TrainingError if that ranker reads pairs in another way, or has another backbone or tokenizer;
    RankerError if it cannot be opened.
    """
    taken = open_ranker(encoder)
    ranker = passage_ranker(settings.backbone, replace(settings, pretrained=False))
    if taken.spec.plan != "pair" or getattr(taken.spec.options, "pooling", None) != "mean":
        raise TrainingError(f"--encoder {encoder}: its encoder does not use mean pooling of pairs")
    files = [each.reader.tokenizer.files for each in (taken, ranker)]
    if dict(taken.backbone_config) != dict(ranker.backbone_config) or files[0] != files[1]:
        raise TrainingError(f"--encoder {encoder}: its backbone or tokenizer is not {settings.backbone}'s")
    ranker.encoder.backbone.load_state_dict(taken.encoder.backbone.state_dict())
    return ranker


def contender_ranker(
    contender: Contender, passages: Path, settings: Settings, seed: int, head: Path | None = None
) -> Ranker:
    """Put a contender's aggregator, new or with the weights in `head`, on the passage ranker's encoder."""
    family = contender.family
    options: dict[str, Any] = {"pooling": "mean"} if contender.has_vectors else {}
    ranker = new_ranker(
        family, passages, chunking_of(family, settings), seed, pretrained=False, options=options
    )
    trained: nn.Module = open_ranker(passages).encoder.backbone
    ranker.encoder.backbone.load_state_dict(trained.state_dict())
    ranker.aggregator.start_from(ranker.encoder.backbone, ranker.reader.tokenizer.pair)
    if head is not None:
        fill_head(ranker, head)
    return without_positions(ranker) if not contender.reads_positions else ranker


def without_positions(ranker: Ranker) -> Ranker:
    """Set the position embeddings of a PARADE transformer to 0 and freeze them.

    The transformer then sees only the chunks' vectors, not their order.
    """
    transformer: Any = ranker.aggregator.get_submodule("transformer.bert")
    table = transformer.embeddings.position_embeddings.weight
    with torch.no_grad():
        table.zero_()
    table.requires_grad_(False)
    return ranker


def opened(contender: Contender, artifact: Path) -> Ranker:
    """Open a trained contender, to train it further or to measure it."""
    ranker = open_ranker(artifact)
    return without_positions(ranker) if not contender.reads_positions else ranker
