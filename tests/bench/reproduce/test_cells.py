import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from farrank_bench.reproduce.cells import (
    BEST_CHUNK,
    BI_ENCODER,
    CELLS,
    CROSS_ENCODER,
    INFINITY,
    PYLATE,
    WAYS,
    Cell,
    Figures,
    Kept,
    read_figures,
)
from farrank_bench.reproduce.corpora import CORPORA
from farrank_cli.commands import serve
from farrank_cli.main import load
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.dense import DenseConfig
from farrank_first_stage.fusion import FusionConfig
from farrank_server.config.server_config import build_config
from farrank_trec.errors import InputError

FIGURES = Figures(
    cell=CELLS["demo.embedded"],
    questions=3,
    rounds=2,
    calls={"1": 3, "16": 6},
    p50_ms={"1": (2.0, 3.0), "16": (5.0, 6.0)},
    p99_ms={"1": 4.0, "16": 9.0},
    bytes_a_document=12.5,
    index_s=None,
    seconds=1.0,
    runs_on="torch fp32, cpu",
    date="2026-11-28",
    machine="one core",
    versions="farrank 1",
)


def test_every_collection_has_every_way_and_begins_with_lucene() -> None:
    assert all(cell.name == name for name, cell in CELLS.items())
    assert not WAYS[0].ranker
    for corpus in CORPORA:
        its = [cell.way for cell in CELLS.values() if cell.corpus == corpus]
        assert its[: len(WAYS)] == list(WAYS)


def test_the_cells_cover_every_axis_and_peer() -> None:
    ways = [cell.way for cell in CELLS.values()]
    assert {way.first_stage for way in ways} == {"BM25", "dense", "hybrid"}
    assert {way.runtime for way in ways} == {"", "torch", "export"}
    assert {"all", "adaptive", "first chunk"} <= {way.depth for way in ways}
    assert {way.peer for way in ways} == {"", BI_ENCODER, CROSS_ENCODER, PYLATE, INFINITY, BEST_CHUNK}


def test_a_way_says_how_its_ranker_is_served() -> None:
    first = CELLS["demo.maxp-first"].way
    assert first.server_flags(None) == [
        *("--ranker", "it=embedded:maxp", "--set=cache_bytes=0", "--runtime=torch"),
        "--set=rankers.it.max_document_tokens=128",
    ]
    assert replace(first, first_tokens=0, precision="fp32").server_flags(None)[-1] == "--precision=fp32"
    assert "--export=auto" in replace(first, runtime="export").server_flags(None)


def test_a_first_stage_is_the_servers_index(tmp_path: Path) -> None:
    for name in ("embedded", "dense", "hybrid"):
        flags = CELLS[f"demo.{name}"].way.server_flags(tmp_path)
        parser = argparse.ArgumentParser()
        load("serve").configure(parser)
        config = build_config(serve.read_settings(parser.parse_args(flags), {}))
        found = config.first_stage.indexes["docs"]
        assert type(found) is {"embedded": Bm25Config, "dense": DenseConfig, "hybrid": FusionConfig}[name]
    assert isinstance(found, FusionConfig)
    assert [type(config.first_stage.indexes[each]) for each in found.of] == [Bm25Config, DenseConfig]


def test_figures_come_back_from_their_file_in_the_order_of_the_matrix(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept.finished() == []
    assert not kept.is_finished(FIGURES.cell)
    earlier = replace(FIGURES, cell=CELLS["demo.lucene"])
    for each in (FIGURES, earlier):
        each.write(kept.figures(each.cell))
    assert read_figures(kept.figures(FIGURES.cell)) == FIGURES
    assert kept.finished() == [earlier, FIGURES]


def test_figures_of_other_settings_are_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    other = Cell("demo", replace(FIGURES.cell.way, candidates=7))
    replace(FIGURES, cell=other).write(kept.figures(other))
    with pytest.raises(InputError, match=r"measured with other settings than demo\.embedded has now"):
        kept.is_finished(FIGURES.cell)
    kept.figures(FIGURES.cell).write_text("{}")
    with pytest.raises(InputError, match="not written by"):
        kept.finished()
