"""A first stage in another package: one class, one row, one entry point."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farrank_calls.errors import Unavailable
from farrank_calls.telemetry.call_record import NO_CALL
from farrank_client import AsyncClient
from farrank_first_stage import kinds
from farrank_first_stage.stages import open_first_stages
from farrank_server.config.schema import ServerConfig
from farrank_server.config.server_config import build_config
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from farrank_settings.sources import from_file

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "own-first-stage.md").read_text(encoding="utf-8")
TEXTS = {
    "rhine": "the river Rhine flows to the sea",
    "bread": "flour and salt",
    "sea": "a river meets the sea",
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make Python see the page's package as installed, together with two wrong ones."""
    [(name, code)] = re.findall(r"```python\n# (lab/\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    [(group, line)] = re.findall(r"```toml\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)\n```", PAGE)
    folder = tmp_path / "site-packages"
    info = folder / "lab-1.0.dist-info"
    for each in (folder / "lab", info):
        each.mkdir(parents=True)
    (folder / name).write_text(code, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    points = [
        f"[{group}]",
        line.replace('"', ""),
        "no-row = lab.sqlite_stage:re",
        "no-module = lab.missing:ROW",
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    kinds.kind_named.cache_clear()
    yield tmp_path
    kinds.kind_named.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[module]


@pytest.fixture
def config(lab: Path) -> ServerConfig:
    """Return the page's configuration, with the table that it names."""
    with closing(sqlite3.connect(lab / "notes.db")) as notes, notes:
        notes.execute("CREATE VIRTUAL TABLE documents USING fts5(id UNINDEXED, text)")
        notes.executemany("INSERT INTO documents VALUES (?, ?)", TEXTS.items())
    [yaml] = re.findall(r"```yaml\n(first_stage:\n  indexes:\n    notes: .*?)```", PAGE, re.DOTALL)
    path = lab / "farrank.yaml"
    path.write_text(yaml + "listen: {port: 0, metrics_port: null}\n", encoding="utf-8")
    return build_config(from_file(path))


async def test_it_is_searched_and_its_candidates_reranked_like_any_other(config: ServerConfig) -> None:
    async with Replica(config) as replica, AsyncClient(replica.address, timeout_s=60) as client:
        ranking = await client.search_and_rerank("river OR (Rhine?", k=2, return_texts=True)
        [described] = (await client.rankers()).indexes

    assert {result.id: result.text for result in ranking.results} == {
        key: TEXTS[key] for key in ("rhine", "sea")
    }
    first = {result.index: result.first_stage_score or 0.0 for result in ranking.results}
    assert first[0] > first[1] > 0
    assert (described.name, described.documents, described.first_stage) == ("notes", 3, "fts5-bm25")


async def test_it_reads_and_scores_what_others_found(config: ServerConfig) -> None:
    stages = open_first_stages(config.first_stage)
    await stages.start()
    [stage] = stages.stages.values()

    found = await stage.search("river rhine", 10, 1.0, texts=False, call=NO_CALL)
    scores = await stage.scores("river rhine", ["bread", "sea"], 1.0, call=NO_CALL)

    assert [(each.doc_id, each.text) for each in found] == [("rhine", ""), ("sea", "")]
    assert scores == {"sea": found[1].score}
    assert await stage.texts(["sea", "bread"], 1.0, call=NO_CALL) == [TEXTS["sea"], TEXTS["bread"]]
    await stages.stop()


async def test_its_searches_end_with_their_deadline(config: ServerConfig, lab: Path) -> None:
    stages = open_first_stages(config.first_stage)
    await stages.start()
    stage: Any = stages.stages["notes"]
    forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stage.ask(forever), 0.05)

    # If its thread had not ended, this would wait for it.
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 20)
    await stages.stop()


async def test_its_errors_reach_the_caller(config: ServerConfig, lab: Path) -> None:
    stages = open_first_stages(config.first_stage)
    await stages.start()
    (lab / "notes.db").unlink()

    with pytest.raises(Unavailable, match="SQLite: unable to open"):
        await stages.search("notes", "river", 2, 1.0)
    await stages.stop()
    with pytest.raises(ConfigError, match=r"^first_stage\.indexes\.notes\.path: notes\.db: SQLite: unable"):
        await open_first_stages(config.first_stage).start()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("sqlit", "'sqlit' is not allowed; it must be one of bm25, .*no-module, no-row, sqlite"),
        ("no-row", "lab.sqlite_stage:re is <module .*; it must be a Kind"),
        ("no-module", r"lab\.missing:ROW cannot be imported: No module named 'lab.missing'"),
    ],
)
def test_problems_of_a_kind_are_reported_with_its_key(lab: Path, kind: str, problem: str) -> None:
    path = lab / "farrank.yaml"
    path.write_text(f"first_stage: {{indexes: {{notes: {{kind: {kind}, path: x}}}}}}", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"first_stage\.indexes\.notes\.kind: .*{problem}"):
        build_config(from_file(path))


def test_its_own_options_are_checked_like_all_others(lab: Path) -> None:
    path = lab / "farrank.yaml"
    path.write_text("first_stage: {indexes: {notes: {kind: sqlite, table: a-b, pth: x}}}", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        build_config(from_file(path))
    said = "\n".join(refused.value.problems)
    assert "notes.pth: there is no such key" in said
    assert "notes.path: a value is required" in said
