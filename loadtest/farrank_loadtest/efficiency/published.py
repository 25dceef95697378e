"""The papers' figures: lengths of documents, and rankers' average gain and run time over their FirstP.

Source: Boytsov et al., arXiv 2207.01262: Table 4 (last column) and Figure 1, whose abscissas are read off;
only the paper's first version has the query-aware PARADE, with values (its Table 4) but no average.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# The most that the papers' models read of a document.
LIMIT = 1431
# Means of MS MARCO v1, v2 (2,000, of which models read LIMIT) and Robust04.
# Source: Boytsov et al., arXiv 2207.01262, Table 2.
PAPERS_LENGTHS = (1400, LIMIT, 600)


TABLE_4 = "Table 4"
# PARADE Transf-PRETR-Q-L6 and FirstP (BERT) on MS MARCO dev, TREC DL 2019-2021, Robust04 title, description.
_WITH_QUERY = ((0.408, 0.394), (0.650, 0.632), (0.498, 0.475), (0.561, 0.527))


@dataclass(frozen=True, slots=True)
class PublishedTimes:
    """A ranker's name in the papers, its gain in percent, and its run time over FirstP's, lowest and highest.

    `run_time` is None if Figure 1 leaves the ranker out; `gain_percent`, if the papers do not have it.
    """

    title: str
    gain_percent: float | None
    run_time: tuple[float, float] | None = None
    source: str = TABLE_4


PUBLISHED: Mapping[str, PublishedTimes] = {
    "avgp-bert": PublishedTimes("AvgP", 0.4),
    "maxp-bert": PublishedTimes("MaxP", 1.9, (2.4, 2.4)),
    "maxp-electra": PublishedTimes("MaxP (ELECTRA)", 0.8),
    "maxp-deberta": PublishedTimes("MaxP (DeBERTa)", -0.2),
    "sump-bert": PublishedTimes("SumP", 1.1),
    "cedr-drmm-bert": PublishedTimes("CEDR-DRMM", -0.9),
    "cedr-knrm-bert": PublishedTimes("CEDR-KNRM", -0.2),
    "cedr-pacrr-bert": PublishedTimes("CEDR-PACRR", 2.6, (2.23, 2.23)),
    "neural-model1-bert": PublishedTimes("Neural Model 1", 1.8, (2.25, 2.25)),
    "parade-avg-bert": PublishedTimes("PARADE Avg", 1.1),
    "parade-max-bert": PublishedTimes("PARADE Max", 3.3),
    "parade-attn-bert": PublishedTimes("PARADE Attn", 5.0, (2.39, 2.5)),
    "parade-attn-electra": PublishedTimes("PARADE Attn (ELECTRA)", 4.4),
    "parade-attn-deberta": PublishedTimes("PARADE Attn (DeBERTa)", 2.5),
    "parade-transf-rand-l2-bert": PublishedTimes("PARADE Transf-RAND-L2", 4.2),
    "parade-transf-rand-l2-electra": PublishedTimes("PARADE Transf-RAND-L2 (ELECTRA)", 3.8),
    "parade-transf-pretr-l6-bert": PublishedTimes("PARADE Transf-PRETR-L6", 3.2),
    "parade-transf-pretr-q-l6-bert": PublishedTimes(
        "PARADE Transf-PRETR-Q-L6",
        round(25 * sum(value / first - 1 for value, first in _WITH_QUERY), 1),
        source="averaged from Table 4 of the first version",
    ),
    "parade-transf-pretr-lateir-l6-bert": PublishedTimes("PARADE Transf-PRETR-LATEIR-L6", -2.5),
    "longp-longformer": PublishedTimes("LongP (Longformer)", 3.6, (2.32, 2.32)),
    "longp-bigbird": PublishedTimes("LongP (BigBird)", -7.3, (2.80, 2.80)),
    "longp-jina": PublishedTimes("LongP (JINA)", 2.0, (4.71, 4.71)),
    "longp-mosaic": PublishedTimes("LongP (MOSAIC)", 2.4, (3.53, 3.53)),
    "longp-tinyllama": PublishedTimes("LongP (TinyLLAMA)", 3.0, (2.96, 2.96)),
    "longp-e5-4k": PublishedTimes("LongP (E5-4K), zero-shot", -1.1),
}
