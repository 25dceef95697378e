"""Which classes make up each family; all are built as `cls(spec, config)`, config the parsed config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.avgp import AvgP
from farrank_rankers.families.biencoder import SimilarityAggregator, TextEncoder
from farrank_rankers.families.cross_encoder import LogitAggregator, LogitEncoder
from farrank_rankers.families.firstp import FirstP
from farrank_rankers.families.maxp import MaxP, SumP
from farrank_rankers.families.vector_encoder import VectorEncoder
from farrank_rankers.spec import RankerSpec

Config = Mapping[str, Any]

ENCODERS: Mapping[str, Callable[[RankerSpec, Config], Encoder]] = {
    "firstp": VectorEncoder,
    "avgp": VectorEncoder,
    "maxp": VectorEncoder,
    "sump": VectorEncoder,
    "cross-encoder": LogitEncoder,
    "biencoder": TextEncoder,
}

AGGREGATORS: Mapping[str, Callable[[RankerSpec, Config], Aggregator]] = {
    "firstp": FirstP,
    "avgp": AvgP,
    "maxp": MaxP,
    "sump": SumP,
    "cross-encoder": LogitAggregator,
    "biencoder": SimilarityAggregator,
}
