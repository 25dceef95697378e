"""The papers' models by name: a spec each, and how many parameters the paper counts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.chunking import Chunking
from farrank_rankers.default_chunking import default_chunking
from farrank_rankers.derived_spec import default_options
from farrank_rankers.family import Options, family_named
from farrank_rankers.papers.backbones import BACKBONES
from farrank_rankers.spec import RankerSpec, changed_options

# The names that the paper has for its backbones.
BERT, ELECTRA, DEBERTA = (
    "google-bert/bert-base-uncased",
    "cross-encoder/ms-marco-electra-base",
    "microsoft/deberta-v3-base",
)
LONG = {
    "longformer": "allenai/longformer-base-4096",
    "bigbird": "google/bigbird-roberta-base",
    "jina": "jinaai/jina-embeddings-v2-base-en",
    "mosaic": "mosaicml/mosaic-bert-base-seqlen-2048",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
}
SHORT = {"bert": BERT, "electra": ELECTRA, "deberta": DEBERTA}
E5 = "dwzhu/e5-base-4k"

# Table 6, in millions, from least to most.
PARAMETERS: Mapping[str, tuple[int, int]] = {
    BERT: (110, 110),
    ELECTRA: (110, 110),
    DEBERTA: (184, 184),
    LONG["longformer"]: (149, 149),
    LONG["bigbird"]: (127, 127),
    LONG["jina"]: (137, 137),
    LONG["mosaic"]: (137, 137),
    LONG["tinyllama"]: (1034, 1034),
    E5: (110, 110),
}
PARADE_TRANSFORMER = (132, 148)


@dataclass(frozen=True, slots=True)
class PaperModel:
    """A model's name, its spec, and the range of Table 6, in millions of parameters."""

    name: str
    spec: RankerSpec
    published_millions: tuple[int, int]

    @property
    def config(self) -> Mapping[str, Any]:
        """The backbone's parsed config.json."""
        return BACKBONES[self.spec.backbone]


def paper_models() -> Mapping[str, PaperModel]:
    """Every model of the paper by name, in the order of its families."""
    return {model.name: model for model in _models()}


def _models() -> Iterator[PaperModel]:
    for name, backbone in (SHORT | LONG).items():
        yield _model(f"firstp-{name}", "firstp", backbone)
    yield _model("avgp-bert", "avgp", BERT)
    for name, backbone in SHORT.items():
        yield _model(f"maxp-{name}", "maxp", backbone)
    yield _model("sump-bert", "sump", BERT)
    for family in ("cedr-drmm", "cedr-knrm", "cedr-pacrr", "neural-model1", "parade-avg", "parade-max"):
        yield _model(f"{family}-bert", family, BERT)
    for name, backbone in SHORT.items():
        yield _model(f"parade-attn-{name}", "parade-attn", backbone)
    for name in ("bert", "electra"):
        yield _model(
            f"parade-transf-rand-l2-{name}", "parade-transf-rand", SHORT[name], millions=PARADE_TRANSFORMER
        )
    for name, family in (
        ("parade-transf-pretr-l6", "parade-transf-pretr"),
        ("parade-transf-pretr-q-l6", "parade-transf-pretr-q"),
        ("parade-transf-pretr-lateir-l6", "parade-transf-pretr-lateir"),
    ):
        yield _model(f"{name}-bert", family, BERT, millions=PARADE_TRANSFORMER)
    for name, backbone in LONG.items():
        yield _model(f"longp-{name}", "longp", backbone)
    options = {"query_prefix": "query: ", "document_prefix": "passage: ", "position_step": 8}
    options |= {"aggregation": "first"}
    for name, window in (("firstp-e5-4k", 477), ("longp-e5-4k", 1431)):
        chunking = Chunking("first", window, window, 1431)
        yield _model(name, "biencoder", E5, chunking=chunking, options=options)


def _model(
    name: str,
    family: str,
    backbone: str,
    *,
    chunking: Chunking | None = None,
    options: Mapping[str, Any] | None = None,
    millions: tuple[int, int] | None = None,
) -> PaperModel:
    """Give a model the paper's limits: queries of 32 tokens, padded to as many where chunks hold them."""
    facts = family_named(family)
    chosen: Options = default_options(family, BackboneFacts.from_config(BACKBONES[backbone]))
    spec = RankerSpec(
        family=family,
        backbone=backbone,
        chunking=chunking or default_chunking("pair", facts.chunking, None, whole=facts.whole),
        max_query_tokens=32,
        pad_query_to=32 if facts.plan == "pair" else None,
        options=changed_options(chosen, options or {}),
        provenance={"paper": "arXiv 2207.01262"},
    )
    return PaperModel(name, spec, millions or PARAMETERS[backbone])
