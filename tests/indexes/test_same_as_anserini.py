"""Farrank's indexes rank like Anserini's, and indexes of both, and of earlier versions, can be searched."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

from farrank_first_stage.bm25 import Bm25Config, Bm25Rm3Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import open_first_stages
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import build_index
from farrank_loadtest.workloads.synthetic import words
from farrank_lucene.jvm import child_environment

# Its own program: pyserini 2's class of indexers downloads lists when it is imported.
ANSERINI = """
import sys
from farrank_lucene.jvm import start_jvm
start_jvm(256)
from jnius import autoclass
autoclass("io.anserini.index.IndexCollection").main(sys.argv[1:])
"""
STORED = ["-storeContents", "-storeDocvectors"]
QUERIES = [
    "river boats",
    "Black birds, blue boxes and the art of breaking",
    "don't ask-again",
    "running ran",
    "Übung",
]


def test_rankings_and_texts_are_the_same(tmp_path: Path) -> None:
    drawn = random.Random(3)
    texts = [" ".join(drawn.choices(words(), k=drawn.randint(3, 80))) for _ in range(200)]
    texts += ["Don't ask again: it's a river's boat.", "Übungen über Übung\r\n\tRUNNING  ran", "🚣 boat"]
    documents = [IndexDocument(f"d{number}", text) for number, text in enumerate(texts)]
    collection = tmp_path / "collection"
    collection.mkdir()
    lines = [json.dumps({"id": each.doc_id, "contents": each.text}) for each in documents]
    (collection / "documents.jsonl").write_text("\n".join(lines))
    read = ["-collection", "JsonCollection", "-input", str(collection)]
    written = ["-generator", "DefaultLuceneDocumentGenerator", "-threads", "1", *STORED]
    subprocess.run(
        [sys.executable, "-c", ANSERINI, *read, "-index", str(tmp_path / "anserini"), *written],
        env=child_environment(),
        check=True,
        capture_output=True,
    )
    build_index(documents, tmp_path / "ours")

    async def search() -> dict[str, list[list[tuple[str, float, str]]]]:
        indexes = {
            f"{made}-{kind.__name__}": kind(tmp_path / made)
            for made in ("anserini", "ours")
            for kind in (Bm25Config, Bm25Rm3Config)
        }
        stages = open_first_stages(FirstStageConfig(indexes=indexes))
        await stages.start()
        try:
            return {
                name: [
                    [
                        (each.doc_id, round(each.score, 4), each.text)
                        for each in await stages.search(name, query, 50, 60)
                    ]
                    for query in QUERIES
                ]
                for name in indexes
            }
        finally:
            await stages.stop()

    found = asyncio.run(search())
    for kind in ("Bm25Config", "Bm25Rm3Config"):
        assert found[f"ours-{kind}"] == found[f"anserini-{kind}"]
        assert all(found[f"ours-{kind}"])
