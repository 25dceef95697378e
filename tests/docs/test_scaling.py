"""docs/explanation/how-many-replicas.md: its example follows from a ranker's chunks and models' sizes."""

import math
from pathlib import Path

from farrank_rankers.chunking import chunk_bounds
from farrank_rankers.papers import paper_models

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/explanation/how-many-replicas.md").read_text(encoding="utf-8").split())
DOCUMENT_TOKENS, DOCUMENTS, QUERIES_PER_S = 1431, 100, 1000
PEAK, AIM, SHARE = 989e12, 0.55, 0.7


def test_the_worked_example() -> None:
    spec = paper_models()["parade-attn-bert"].spec
    bounds = chunk_bounds(spec.chunking, DOCUMENT_TOKENS)
    tokens = int((bounds[:, 1] - bounds[:, 0]).sum())
    assert f"{len(bounds)} chunks of together {tokens:,} tokens" in PAGE
    around = (spec.pad_query_to or 0) + 3
    positions = tokens + len(bounds) * around
    assert f"{positions:,} positions a document" in PAGE
    all_positions = positions * DOCUMENTS * QUERIES_PER_S
    assert f"{all_positions / 1e6:.1f} million positions a second" in PAGE
    sees = spec.chunking.window + around
    assert f"here {sees} at most" in PAGE
    for layers, wide, replicas in (
        (12, 768, "**{} replicas and spare**"),
        (6, 384, "would take {} and spare"),
    ):
        operations = 24 * layers * wide**2 + 4 * layers * wide * sees
        assert f"| {operations / 1e6:.1f} million | {operations * all_positions / 1e15:.1f} × 10¹⁵ |" in PAGE
        needed = operations * all_positions / PEAK / SHARE
        assert replicas.format(math.ceil(needed / AIM)) in PAGE
        if layers == 12:
            told = f"{math.ceil(needed)} replicas, at a fifth of it {math.ceil(needed * 5)}."
            assert told in PAGE
