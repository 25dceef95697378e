"""Two small indexes with one search process, shared by the tests because each start takes seconds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farrank_first_stage.bm25 import Bm25Config, Rm3Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.fusion import FusionConfig
from farrank_first_stage.stages import FirstStages, open_first_stages
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import build_index

# Words that no stemmer or stop list changes. "long" has more tokens than Lucene stores exact lengths for.
TOY = {
    "short": "alpha delta",
    "long": "alpha alpha omega " + "gamma " * 58,
    "other": "omega omega delta sigma",
}

ODD = {
    "emoji": "emojidoc \U0001f600 café 中文 \U0001f468‍\U0001f469‍\U0001f467",
    "controls": "controldoc \x00 \x01\x1b\x7f\u2028 tab\t end \x85",
    "lines": "  linesdoc\r\nsecond\rthird\n\n  ",
    "quotes": 'quotesdoc "title:x" AND \\ {"contents": 1}',
    "huge": "hugedoc " + "0123456789 haystack\n" * (10 * 2**20 // 20),
    "tie-c": "tiedoc same words",
    "tie-a": "tiedoc same words",
    "tie-b": "tiedoc same words",
    "volcano-1": "volcano magma lava",
    "volcano-2": "volcano magma ash",
    "chamber": "magma chamber below",
}
ODD |= {f"filler-{n:02}": f"filler number{n} about thing{n}" for n in range(40)}


def _documents(texts: dict[str, str]) -> list[IndexDocument]:
    return [IndexDocument(doc_id, text) for doc_id, text in texts.items()]


@pytest.fixture
def toy_texts() -> dict[str, str]:
    return TOY


@pytest.fixture(scope="session")
def odd_texts() -> dict[str, str]:
    return ODD


@pytest.fixture(scope="session")
def toy_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "index"
    build_index(_documents(TOY), path)
    return path


@pytest.fixture(scope="session")
def odd_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "index"
    build_index(_documents(ODD), path)
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(toy_index: Path, odd_index: Path) -> AsyncIterator[FirstStages]:
    indexes = {
        "toy": Bm25Config(toy_index),
        "toy-other-parameters": Bm25Config(toy_index, k1=1.5, b=0.9),
        "odd": Bm25Config(odd_index),
        "odd-rm3": Bm25Config(odd_index, rm3=Rm3Config()),
        "fused": FusionConfig(of=("odd", "odd-rm3"), method="mean"),
    }
    stage = open_first_stages(FirstStageConfig(indexes=indexes, search_threads=2))
    await stage.start()
    yield stage
    await stage.stop()
