"""The memory of training data depends on the wanted ids, not on the sizes of collection and run."""

from pathlib import Path

import pytest

from farrank_bench.collection_memory import PER_QUERY, CollectionMemory, main, read_elsewhere, write_set


def read(folder: Path, megabytes: int, document_bytes: int, times: int = 1) -> CollectionMemory:
    folder.mkdir()
    write_set(folder, megabytes << 20, 400, document_bytes, times)
    return read_elsewhere(folder)


def test_a_collection_a_hundred_times_as_large_takes_no_more_memory(tmp_path: Path) -> None:
    small, large = read(tmp_path / "small", 2, 4096), read(tmp_path / "large", 200, 4096)
    assert (small.groups, large.groups) == (4, 4)
    assert large.peak < 1.1 * small.peak


def test_texts_that_are_wanted_stay_in_their_files(tmp_path: Path) -> None:
    """Both collections have the same 400 wanted documents: one has 1 MiB, the other 160 MiB."""
    short, long = read(tmp_path / "short", 1, 2560), read(tmp_path / "long", 160, 400 << 10)
    assert long.groups == short.groups
    assert long.peak < 1.2 * short.peak


def test_a_line_of_the_run_takes_few_bytes(tmp_path: Path) -> None:
    """Queries, judgements and Python's own growth are in it: a hundred lines of the run stand for each."""
    few, many = read(tmp_path / "few", 2, 4096), read(tmp_path / "many", 2, 4096, times=200)
    lines = (many.groups - few.groups) * PER_QUERY
    assert lines == 79_600
    assert (many.peak - few.peak) * (1 << 20) / lines < 50


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--megabytes", "1", "2", "--wanted", "200", "--times", "1", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[4].strip() for line in lines] == ["candidates", "---:", *["200", "600"] * 2]
    peaks = [float(line.split("|")[5]) for line in lines[2:]]
    assert all(5 < peak < 500 for peak in peaks)
