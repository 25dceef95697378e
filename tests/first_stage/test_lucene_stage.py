"""Texts of a search: from the store beside the index if there is one, and otherwise from Lucene."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farrank_calls.errors import Gone, Internal
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.lucene_host import LuceneHost
from farrank_first_stage.stages import open_first_stages
from farrank_indexes.token_store import TokenStoreBuilder
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from support import tiny_tokenizers
from support.kept_index import copy_with, kept_index

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, odd_texts: dict[str, str]) -> Path:
    """Build an index that stores tokens, and so texts; not in an event loop, because the builder has one."""
    tokens = TokenStoreBuilder(TextTokenizer(TokenizerFiles(tiny_tokenizers.wordpiece().to_str())))
    return kept_index(tmp_path_factory.mktemp("stored") / "index", odd_texts, [tokens])


async def test_stored_texts_are_those_of_lucene(
    tmp_path: Path, stored: Path, odd_texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = copy_with(stored, tmp_path / "older")
    asked: list[Mapping[str, Any]] = []
    ask = LuceneHost.ask

    async def noted(host: LuceneHost, index: str, request: Mapping[str, Any], *rest: Any) -> Any:
        asked.append({"index": index, **request})
        return await ask(host, index, request, *rest)

    monkeypatch.setattr(LuceneHost, "ask", noted)
    config = FirstStageConfig(indexes={"stored": Bm25Config(stored), "older": Bm25Config(older)})
    stages = open_first_stages(config)
    await stages.start()
    try:
        for query in ("emojidoc controldoc linesdoc quotesdoc tiedoc volcano", "hugedoc", "nothing at all"):
            of_store, of_lucene = [await stages.search(name, query, 50, TIMEOUT_S) for name in config.indexes]
            assert [(each.doc_id, each.text) for each in of_store] == [
                (each.doc_id, each.text) for each in of_lucene
            ]
        assert await stages.texts("stored", list(odd_texts), TIMEOUT_S) == await stages.texts(
            "older", list(odd_texts), TIMEOUT_S
        )
        assert [
            each.text for each in await stages.search("stored", "volcano", 2, TIMEOUT_S, texts=False)
        ] == [
            "",
            "",
        ]
        assert not any(each.get("texts") or "read" in each for each in asked if each["index"] == "stored")
        assert any(each.get("texts") for each in asked if each["index"] == "older")
        for name in config.indexes:
            with pytest.raises(Gone) as gone:
                await stages.texts(name, ["emoji", "nowhere"], TIMEOUT_S)
            assert gone.value.doc_ids == ("nowhere",)
    finally:
        await stages.stop()


async def test_a_damaged_text_fails_its_call(tmp_path: Path, stored: Path) -> None:
    index = copy_with(stored, tmp_path / "index", "texts")
    (part,) = (index / "texts").glob("part-*/texts.utf8")
    part.write_bytes(part.read_bytes().replace("é".encode(), b"\xff\xff"))
    stages = open_first_stages(FirstStageConfig(indexes={"index": Bm25Config(index)}, verify_stores=False))
    await stages.start()
    try:
        with pytest.raises(Internal, match="the texts of index index are damaged"):
            await stages.search("index", "emojidoc", 2, TIMEOUT_S)
        found = await stages.search("index", "ash", 2, TIMEOUT_S)
        assert [each.text for each in found] == ["volcano magma ash"]
    finally:
        await stages.stop()
