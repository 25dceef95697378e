"""Which classes make up each family; all are built as `cls(spec, config)`, config the parsed config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.biencoder import SimilarityAggregator, TextEncoder
from farrank_rankers.families.cedr import CedrDrmm, CedrKnrm, HiddenStatesEncoder
from farrank_rankers.families.cedr_pacrr import CedrPacrr
from farrank_rankers.families.cross_encoder import LogitAggregator, LogitEncoder
from farrank_rankers.families.late_interaction import LateInteraction, TokenEncoder
from farrank_rankers.families.neural_model1 import NeuralModel1, ProjectedTokenEncoder
from farrank_rankers.families.parade import ParadeAttn, ParadeAvg, ParadeMax
from farrank_rankers.families.parade_transformer import (
    ParadeTransfPretr,
    ParadeTransfQuery,
    ParadeTransfRand,
    QueryEncoder,
)
from farrank_rankers.families.passages import AvgP, FirstP, LongP, MaxP, SumP, VectorEncoder
from farrank_rankers.spec import RankerSpec

Config = Mapping[str, Any]

ENCODERS: Mapping[str, Callable[[RankerSpec, Config], Encoder]] = {
    "firstp": VectorEncoder,
    "longp": VectorEncoder,
    "avgp": VectorEncoder,
    "maxp": VectorEncoder,
    "sump": VectorEncoder,
    "cedr-knrm": HiddenStatesEncoder,
    "cedr-pacrr": HiddenStatesEncoder,
    "cedr-drmm": HiddenStatesEncoder,
    "neural-model1": ProjectedTokenEncoder,
    "parade-avg": VectorEncoder,
    "parade-max": VectorEncoder,
    "parade-attn": VectorEncoder,
    "parade-transf-rand": VectorEncoder,
    "parade-transf-pretr": VectorEncoder,
    "parade-transf-pretr-q": QueryEncoder,
    "parade-transf-pretr-lateir": TokenEncoder,
    "cross-encoder": LogitEncoder,
    "biencoder": TextEncoder,
}

AGGREGATORS: Mapping[str, Callable[[RankerSpec, Config], Aggregator[Any]]] = {
    "firstp": FirstP,
    "longp": LongP,
    "avgp": AvgP,
    "maxp": MaxP,
    "sump": SumP,
    "cedr-knrm": CedrKnrm,
    "cedr-pacrr": CedrPacrr,
    "cedr-drmm": CedrDrmm,
    "neural-model1": NeuralModel1,
    "parade-avg": ParadeAvg,
    "parade-max": ParadeMax,
    "parade-attn": ParadeAttn,
    "parade-transf-rand": ParadeTransfRand,
    "parade-transf-pretr": ParadeTransfPretr,
    "parade-transf-pretr-q": ParadeTransfQuery,
    "parade-transf-pretr-lateir": LateInteraction,
    "cross-encoder": LogitAggregator,
    "biencoder": SimilarityAggregator,
}
