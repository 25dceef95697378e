"""`farrank search` and `farrank rankers` against a small real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from farrank.v1 import rerank_pb2

if TYPE_CHECKING:
    from support.commands import Outcome
    from support.counting_server import WordCounter

Farrank = Callable[..., "Outcome"]
Server = tuple[str, "WordCounter"]


def test_search_shows_passages_of_what_the_server_found(farrank: Farrank, server: Server) -> None:
    target, servicer = server

    outcome = farrank(
        "search",
        "--server",
        target,
        "--query",
        "Käse",
        "--index",
        "stored",
        "--k",
        "7",
        "--depth",
        "all",
        *("--instruction", "Find it."),
    )

    assert outcome.exit_code == 0
    _, first, second = outcome.out.splitlines()
    assert first.split() == ["1", "1.0000", "d2", "2/2", "[9:21]", "Käse", "is", "here"]
    assert second.split()[:3] == ["2", "0.0000", "d1"]
    assert (servicer.requests[0].index, servicer.requests[0].k) == ("stored", 7)
    assert servicer.requests[0].options.depth.mode == rerank_pb2.DEPTH_MODE_ALL
    assert servicer.requests[0].options.instruction == "Find it."


def test_search_prints_json_lines(farrank: Farrank, server: Server) -> None:
    outcome = farrank("search", "--server", server[0], "--query", "Käse", "--json")

    assert [json.loads(line)["id"] for line in outcome.out.splitlines()] == ["d2", "d1"]


def test_nothing_found_is_no_failure(farrank: Farrank, server: Server) -> None:
    outcome = farrank("search", "--server", server[0], "--query", "nowhere")

    assert (outcome.exit_code, outcome.out) == (0, "no documents found\n")
    assert farrank("search", "--server", server[0], "--query", "nowhere", "--json").out == ""


def test_rankers_lists_what_the_server_holds(farrank: Farrank, server: Server) -> None:
    outcome = farrank("rankers", "--server", server[0])

    assert outcome.exit_code == 0
    assert "counter" in outcome.out
    assert "256/128" in outcome.out
    assert "counted by hand  2.0e-02 at most, 3.0e-03 in the mean; tau 0.9877, top 10 90%" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["stored", "bm25", "2", "bm25(k1=0.9,b=0.4)"] in rows
    assert ["joined", "fusion", "2", "rrf(k=60)", "stored,", "x"] in rows
    assert "max_documents        1,000" in outcome.out


def test_rankers_as_json(farrank: Farrank, server: Server) -> None:
    catalog = json.loads(farrank("rankers", "--server", server[0], "--json").out)

    assert catalog["rankers"][0]["name"] == "counter"
    depth = {"mode": "adaptive", "chunks": 2.0, "tokens": None, "milliseconds": None}
    assert catalog["rankers"][0]["depth"] == depth
    stored, joined = catalog["indexes"]
    assert stored == {
        "name": "stored",
        "documents": 2,
        "first_stage": "bm25(k1=0.9,b=0.4)",
        "default_k": 20,
        "kind": "bm25",
        "members": [],
        "tokens_for": [],
        "encodings_for": [],
        "generation": 0,
    }
    assert (joined["kind"], joined["members"]) == ("fusion", ["stored", "x"])
    assert catalog["limits"]["max_documents"] == 1000
