"""`farrank rerank` against a small real server."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict

from farrank.v1 import rerank_pb2

if TYPE_CHECKING:
    from support.commands import Outcome
    from support.counting_server import WordCounter

Farrank = Callable[..., "Outcome"]
Server = tuple[str, "WordCounter"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "empty.txt"]
    paths[0].write_text("nothing", encoding="utf-8")
    paths[1].write_bytes("Grüße, Käse\r\nund\x1b[31m Käse ".encode() + b"x" * 200)
    paths[2].touch()
    return paths


def test_a_table_for_people(farrank: Farrank, server: Server, files: list[Path]) -> None:
    outcome = farrank("rerank", "--server", server[0], "--query", "Käse", *files)

    assert outcome.exit_code == 0
    head, first, *_, last = outcome.out.splitlines()
    assert head.split() == ["rank", "score", "document", "chunks", "passage"]
    assert first.split()[:5] == ["1", "2.0000", str(files[1]), "2/3", "[7:227]"]
    assert "Käse und [31m Käse xxx" in first
    assert first.endswith("…")
    assert "\x1b" not in outcome.out
    assert last.endswith("(no text)")
    assert "counter v1: 3 documents shown, 6 of 7 chunks read in 1 round, 0.250 s" in outcome.err
    assert (
        "beyond a limit in 1 of 3 documents: about 1 chunk, 2 tokens, 10 characters at the end" in outcome.err
    )


def test_json_lines_for_programs(farrank: Farrank, server: Server, files: list[Path]) -> None:
    outcome = farrank("rerank", "--server", server[0], "--query", "Käse", "--json", "--chunks", *files)

    first, *_, last = map(json.loads, outcome.out.splitlines())
    assert (first["rank"], first["id"], first["index"], first["score"]) == (1, str(files[1]), 1, 2.0)
    assert first["deciding_passage"]["text"].startswith("Käse\r\nund")
    assert first["deciding_passage"]["evidence"] == "chunk_score"
    assert len(first["chunks"]) == 2
    assert last["deciding_passage"] is None


def test_chunks_are_shown_below_their_document(farrank: Farrank, server: Server, files: list[Path]) -> None:
    outcome = farrank("rerank", "--server", server[0], "--query", "Käse", "--chunks", files[1])

    assert len(outcome.out.splitlines()) == 4


def test_token_matches_are_shown_below_their_document(
    farrank: Farrank, server: Server, files: list[Path]
) -> None:
    outcome = farrank("rerank", "--server", server[0], "--query", "Käse", "--matches", files[1])

    _, _, one, special = outcome.out.splitlines()
    assert one.split() == ["0.7500", "match", "[7:11]", "Käse", "→", "Käse"]
    assert special.split() == ["0.2500", "match", "[0:0]", "Käse", "→", "(a", "special", "token)"]


def test_sentences_are_shown_below_a_document(farrank: Farrank, server: Server, files: list[Path]) -> None:
    asked = ("rerank", "--server", server[0], "--query", "Käse", "--evidence", "sentences", files[1])
    outcome, as_json = farrank(*asked), farrank(*asked, "--json")

    _, _, sentence = outcome.out.splitlines()
    assert sentence.split() == ["0.5000", "sentence", "[7:11]", "Käse"]
    (found,) = json.loads(as_json.out)["sentences"]
    assert found == {"start": 7, "end": 11, "score": 0.5, "text": "Käse"}


def test_the_context_stands_below_the_table(farrank: Farrank, server: Server, files: list[Path]) -> None:
    asked = ("rerank", "--server", server[0], "--query", "Käse", "--context-tokens", "50", files[1])
    outcome, as_json = farrank(*asked), farrank(*asked, "--json")

    assert outcome.out.splitlines()[-3:] == ["", f"{files[1]} [4:9] 0.5000", "a b c"]
    (piece,) = json.loads(as_json.out.splitlines()[-1])["context"]
    assert (piece["start"], piece["end"], piece["text"]) == (4, 9, "a\x1bb c")


def test_the_options_reach_the_server(farrank: Farrank, server: Server, files: list[Path]) -> None:
    target, servicer = server

    options = ("--ranker", "maxp", "--top-n", "2", "--max-chunks", "3", "--query", "a query of many words")
    scale = ("--score-scale", "sigmoid")
    outcome = farrank("rerank", "--server", target, *options, *scale, *files)

    (request,) = servicer.requests
    assert (request.options.ranker, request.options.top_n, request.options.max_chunks) == ("maxp", 2, 3)
    assert request.options.score_scale == rerank_pb2.SCORE_SCALE_SIGMOID
    assert "the last 4 tokens of the query were not read" in outcome.err


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("all", {"mode": "DEPTH_MODE_ALL"}),
        ("adaptive", {"mode": "DEPTH_MODE_ADAPTIVE"}),
        ("adaptive,chunks=2.5", {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 2.5}),
        ("adaptive,tokens=5000", {"mode": "DEPTH_MODE_ADAPTIVE", "tokens": 5000}),
        ("adaptive,milliseconds=300", {"mode": "DEPTH_MODE_ADAPTIVE", "milliseconds": 300}),
    ],
)
def test_a_depth_reaches_the_server(
    farrank: Farrank, server: Server, files: list[Path], given: str, sent: dict[str, Any]
) -> None:
    target, servicer = server
    farrank("rerank", "--server", target, "--query", "Käse", "--depth", given, *files)
    (request,) = servicer.requests
    assert MessageToDict(request.options)["depth"] == sent


def test_a_call_without_depth_asks_for_none(farrank: Farrank, server: Server, files: list[Path]) -> None:
    target, servicer = server
    farrank("rerank", "--server", target, "--query", "Käse", *files)
    assert not servicer.requests[0].options.HasField("depth")


def test_rounds_and_chunks_of_adaptive_depth_are_shown(
    farrank: Farrank, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text(json.dumps({"id": "d", "text": "nothing Käse and Käse " + "x" * 200}) + "\n")
    options = ("--query", "Käse", "--depth", "adaptive,milliseconds=300")
    call = ("rerank", "--server", server[0], *options, "--jsonl", path)
    outcome = farrank(*call, "--chunks")
    head, first, chunk, *_ = outcome.out.splitlines()
    assert head.split() == ["rank", "round", "score", "document", "chunks", "passage"]
    assert first.split()[:6] == ["1", "2", "2.0000", "d", "2/44", "[8:222]"]
    assert chunk.index("[8:222]") == first.index("[8:222]") == head.index("passage")
    assert "1 document shown, 2 of 44 chunks read in 2 rounds, 0.250 s" in outcome.err
    assert "time or a failure ended the call before its last round" in outcome.err
    result = json.loads(farrank(*call, "--json").out)
    assert [result[name] for name in ("chunks_read", "chunks_scored", "chunks_cut", "round")] == [2, 43, 1, 2]


def test_json_lines_from_a_file_and_from_stdin(
    farrank: Farrank, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = '{"id": "a", "text": "x"}\n\n{"id": "b", "text": "Käse", "title": "T"}\n'.encode()
    path = tmp_path / "documents.jsonl"
    path.write_bytes(lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))

    outcomes = [
        farrank("rerank", "--server", server[0], "--query", "Käse", "--json", "--jsonl", source)
        for source in (path, "-")
    ]

    assert outcomes[0].out == outcomes[1].out
    assert [json.loads(line)["id"] for line in outcomes[0].out.splitlines()] == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "a", "text": "x"}\n{"id":', "documents.jsonl:2: not JSON"),
        (b'{"id": "a"}', "documents.jsonl:1: "),
        (b'{"id": "a", "text": "\xff"}', "documents.jsonl:1: not UTF-8"),
        (b"\n", "contains no documents"),
    ],
)
def test_a_bad_line_is_named(farrank: Farrank, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_bytes(content)

    outcome = farrank("rerank", "--query", "q", "--jsonl", path)

    assert outcome.exit_code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_bad_file_is_named(farrank: Farrank, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Käse".encode("latin-1"))

    for path, message in [
        (latin, "not UTF-8 (byte 2)"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "director"),
    ]:
        outcome = farrank("rerank", "--query", "q", path)
        assert outcome.exit_code == 2
        assert str(path) in outcome.err
        assert message in outcome.err


def test_files_or_json_lines_not_both_not_neither(farrank: Farrank) -> None:
    assert farrank("rerank", "--query", "q").exit_code == 2
    assert farrank("rerank", "--query", "q", "--jsonl", "x", "y").exit_code == 2


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("INVALID_ARGUMENT", 1),
        ("NOT_FOUND", 1),
        ("INTERNAL", 1),
        ("RESOURCE_EXHAUSTED", 1),
        ("DEADLINE_EXCEEDED", 3),
    ],
)
def test_the_servers_refusal_is_one_line(
    farrank: Farrank, server: Server, files: list[Path], code: str, exit_code: int
) -> None:
    outcome = farrank("rerank", "--server", server[0], "--query", f"!{code}", files[0])

    assert outcome.exit_code == exit_code
    assert outcome.err == f"farrank: {server[0]}: told to fail [{code}]\n"
    assert outcome.out == ""


def test_a_server_that_is_not_there(farrank: Farrank, files: list[Path]) -> None:
    outcome = farrank("rerank", "--server", "127.0.0.1:1", "--timeout-s", "0.5", "--query", "q", files[0])

    assert outcome.exit_code == 3
    assert outcome.err.startswith("farrank: 127.0.0.1:1: ")
    assert outcome.err.count("\n") == 1


def test_wrong_tls_files_are_one_line(farrank: Farrank, files: list[Path], tmp_path: Path) -> None:
    missing = farrank("rerank", "--query", "q", "--tls-ca", tmp_path / "ca.pem", files[0])
    half = farrank("rerank", "--query", "q", "--tls-certificate", files[0], files[0])

    assert (missing.exit_code, half.exit_code) == (2, 2)
    assert "ca.pem: No such file" in missing.err
    assert "together" in half.err


def test_a_url_and_a_wrong_timeout_are_refused_in_one_line(farrank: Farrank, files: list[Path]) -> None:
    url = farrank("rerank", "--server", "http://localhost:50051", "--query", "q", files[0])
    timeout = farrank("rerank", "--timeout-s", "inf", "--query", "q", files[0])

    assert (url.exit_code, timeout.exit_code) == (2, 2)
    assert url.err.startswith("farrank: --server: 'http://localhost:50051' is a URL; give HOST:PORT")
    assert url.err.count("\n") == 1
    assert "--timeout-s: inf is not finite" in timeout.err


def test_tls_to_a_port_in_plain_text_is_one_line(server: Server, files: list[Path]) -> None:
    command = [sys.executable, "-m", "farrank_cli", "rerank", "--server", server[0], "--tls", "--query", "q"]
    done = subprocess.run([*command, "--timeout-s=1", files[0]], capture_output=True, text=True)

    assert done.returncode == 3
    assert done.stderr.endswith(": it does not speak TLS: connect without TLS [UNAVAILABLE]\n")
    assert done.stderr.count("\n") == 1
