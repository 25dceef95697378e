"""A real server with tiny rankers and an index, and a small test set for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_trec import rank, write_run

if TYPE_CHECKING:
    from support.commands import Outcome

from support.judged_queries import CANDIDATES, QRELS, QUERIES, TEXTS, Files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("test-set")
    made = Files(*(folder / name for name in ("run.trec", "queries.tsv", "collection.jsonl", "qrels.txt")))
    write_run(
        made.candidates,
        {
            query: rank(query, [(doc_id, -float(place)) for place, doc_id in enumerate(doc_ids)])
            for query, doc_ids in CANDIDATES.items()
        },
        tag="first",
    )
    made.queries.write_text("".join(f"{query}\t{text}\n" for query, text in QUERIES.items()))
    made.collection.write_text(
        "".join(json.dumps({"id": doc_id, "text": text}) + "\n" for doc_id, text in TEXTS.items())
    )
    made.qrels.write_text(
        "".join(f"{query} 0 {doc} {grade}\n" for query, of in QRELS.items() for doc, grade in of.items())
    )
    return made


@pytest.fixture(scope="session")
def server(
    files: Files, tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpawnedServer]:
    index = tmp_path_factory.mktemp("accuracy-index") / "index"
    assert main(["index", str(files.collection), "--out", str(index)]) == 0
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in ("firstp", "maxp", "avgp")]
    with spawned_server([*arguments, f"--index=things={index}", "--log-level=warning"]) as spawned:
        yield spawned


@pytest.fixture
def accuracy(farrank: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """`farrank loadtest accuracy` as a function."""
    return partial(farrank, "loadtest", "accuracy")
