"""`farrank index`: its arguments for the index builder, and the messages of failures."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_cli.commands import index
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import IndexOptions
from farrank_indexes.index_process import IndexingError
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[IndexDocument], Path, bool]]:
    """The arguments of the builder, which builds no index here."""
    built: list[tuple[list[IndexDocument], Path, bool]] = []

    def build(
        documents: Iterable[IndexDocument],
        out: Path,
        options: IndexOptions,
        *,
        overwrite: bool,
    ) -> int:
        read = list(documents)
        for document in read:
            if not document.text:
                options.on_blank(document)
        options.progress(len(read))
        built.append((read, out, overwrite))
        return len(read)

    monkeypatch.setattr(index, "build_index", build)
    return built


def test_json_lines_become_an_index(
    farrank: Farrank, built: list[tuple[list[IndexDocument], Path, bool]], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "x"}\n', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"id": "2", "text": "y"}\n', encoding="utf-8")

    outcome = farrank(
        "index", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--out", tmp_path / "out", "--overwrite"
    )

    assert (outcome.exit_code, outcome.out) == (0, f"{tmp_path / 'out'}: 2 documents\n")
    assert built == [([IndexDocument("1", "x"), IndexDocument("2", "y")], tmp_path / "out", True)]


def test_other_keys_and_lines_that_are_left_out(
    farrank: Farrank, built: list[tuple[list[IndexDocument], Path, bool]], tmp_path: Path
) -> None:
    lines = ['{"url": "1", "contents": "x"}', "no JSON", '{"url": "1", "contents": "again"}', '{"x": 0}']
    lines += ['{"url": "2", "contents": ""}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    flags = [
        "--fields",
        "id=url,text=contents",
        "--skip-bad",
        tmp_path / "bad.txt",
        "--out",
        tmp_path / "out",
    ]

    outcome = farrank("index", tmp_path / "a.jsonl", *flags)

    assert built[0][0] == [IndexDocument("1", "x"), IndexDocument("2", "")]
    assert outcome.out == f"{tmp_path / 'out'}: 2 documents; 4 left out, see {tmp_path / 'bad.txt'}\n"
    left_out = (tmp_path / "bad.txt").read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix(str(tmp_path)).partition(": ")[0] for line in left_out] == [
        "/a.jsonl:2",
        "/a.jsonl:3",
        "/a.jsonl:4",
        "document '2'",
    ]


@pytest.mark.parametrize("fields", ["id", "id=", "body=text", "id=a,text"])
def test_fields_are_pairs(farrank: Farrank, tmp_path: Path, fields: str) -> None:
    outcome = farrank("index", "a.jsonl", "--fields", fields, "--out", tmp_path)
    assert (outcome.exit_code, outcome.err.count("FIELD=KEY")) == (2, 1)


def test_one_document_is_one(
    farrank: Farrank, built: list[tuple[list[IndexDocument], Path, bool]], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "x"}\n', encoding="utf-8")
    assert farrank("index", tmp_path / "a.jsonl", "--out", tmp_path / "o").out.endswith(": 1 document\n")


def test_a_collection_or_pydoc_not_both_not_neither(farrank: Farrank, tmp_path: Path) -> None:
    assert farrank("index", "--out", tmp_path).exit_code == 2
    assert farrank("index", "a.jsonl", "--pydoc", "--out", tmp_path).exit_code == 2


def test_inputs_are_not_overwritten_and_not_read_twice(farrank: Farrank, tmp_path: Path) -> None:
    given = tmp_path / "a.jsonl"
    given.write_text('{"id": "1", "text": "x"}\n', encoding="utf-8")
    (tmp_path / "link").symlink_to(given)
    over = farrank("index", given, "--skip-bad", tmp_path / "link", "--out", tmp_path / "out")
    assert (over.exit_code, over.err) == (
        2,
        f"farrank: --skip-bad {tmp_path / 'link'}: is also an input, which it would overwrite\n",
    )
    assert given.read_text(encoding="utf-8") == '{"id": "1", "text": "x"}\n'
    twice = farrank("index", "-", "--append", "--delete", "-", "--out", tmp_path / "out")
    assert (twice.exit_code, "standard input can be read only once" in twice.err) == (2, True)
    pydoc = farrank("index", "--pydoc", "--append", "--out", tmp_path / "out")
    assert (pydoc.exit_code, "--append and --delete change one" in pydoc.err) == (2, True)


def test_a_bad_line_and_a_missing_file_are_named(
    farrank: Farrank, built: list[tuple[list[IndexDocument], Path, bool]], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text("{", encoding="utf-8")

    bad = farrank("index", tmp_path / "bad.jsonl", "--out", tmp_path / "out")
    missing = farrank("index", tmp_path / "none.jsonl", "--out", tmp_path / "out")

    assert (bad.exit_code, missing.exit_code) == (2, 2)
    assert "bad.jsonl:1: not JSON at character " in bad.err
    assert "none.jsonl: No such file" in missing.err


def test_a_list_that_cannot_be_written_names_its_flag(
    farrank: Farrank, built: list[tuple[list[IndexDocument], Path, bool]], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "x"}\n', encoding="utf-8")
    listed = tmp_path / "none" / "bad.txt"

    outcome = farrank("index", tmp_path / "a.jsonl", "--skip-bad", listed, "--out", tmp_path / "out")

    assert (outcome.exit_code, built) == (2, [])
    assert outcome.err == f"farrank: --skip-bad {listed}: No such file or directory\n"


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (FileExistsError("out holds an index already"), 2, "(--overwrite replaces an index)"),
        (ConfigError("pip install 'farrank[lucene]'"), 2, "farrank[lucene]"),
        (IndexingError("disk full"), 1, "disk full"),
        # This error names no file.
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2, "/out: No space left on device"),
    ],
)
def test_failures_are_one_line(
    farrank: Farrank,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    exit_code: int,
    message: str,
) -> None:
    def build(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(index, "build_index", build)
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "x"}\n', encoding="utf-8")

    outcome = farrank("index", tmp_path / "a.jsonl", "--out", tmp_path / "out")

    assert outcome.exit_code == exit_code
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_ids_to_delete_stand_one_a_line_or_in_json_lines(
    farrank: Farrank, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed: list[list[str]] = []

    def change(
        out: Path, documents: object, delete: list[str], options: IndexOptions, *, replacing: bool
    ) -> int:
        changed.append(delete)
        return 1

    monkeypatch.setattr(index, "change_index", change)
    given = tmp_path / "ids"
    command = ["index", "--delete", given, "--out", tmp_path / "out"]
    given.write_text('a\n{3F2504E0}\n{"docid": "b", "text": "x y"}\n\n { "id":"c"}\n', encoding="utf-8")
    assert farrank(*command).exit_code == 0
    given.write_text('{"url": "b", "id": "no"}\n', encoding="utf-8")
    assert farrank(*command, "--fields", "id=url").exit_code == 0
    assert changed == [["a", "{3F2504E0}", "b", "c"], ["b"]]
    for line, message in (
        ('{"text": "x"}', "ids:1: 'id' or 'docid' or"),
        ('{"id": "x"', "ids:1: not JSON"),
        ('{"id": "x y"}', "ids:1: the id 'x y' holds white space"),
        ('{"id": 7}', "ids:1: 'id' must be a string, not int"),
    ):
        given.write_text(line, encoding="utf-8")
        outcome = farrank(*command)
        assert outcome.exit_code == 2
        assert message in outcome.err


def test_a_full_disk_is_reported_in_one_line(tmp_path: Path) -> None:
    """No file may exceed 100 KB here, which Java reports like a full disk."""
    words = (f"word{n}" for n in range(200_000))
    lines = [json.dumps({"id": str(n), "text": " ".join(islice(words, 100))}) for n in range(2000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "out"
    command = "from farrank_cli.main import main; raise SystemExit(main())"
    asked = [sys.executable, "-c", command, "index", str(tmp_path / "a.jsonl"), "--out", str(out)]

    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "-"]
    done = subprocess.run([*limited, *asked], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    # On a slow machine, lines of progress come before it.
    *progress, line = done.stderr.splitlines()
    assert line.startswith("farrank: Lucene cannot write the index: ")
    assert str(tmp_path) in line
    assert line.endswith(": File too large")
    assert all(re.fullmatch(r"[\d,]+ of 1,999 documents indexed, .* left", each) for each in progress)
    assert not out.exists()
