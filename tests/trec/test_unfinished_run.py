"""A run that is written query by query: a kill at any byte loses nothing that was finished."""

from pathlib import Path

import pytest

from farrank_trec import rank, read_run
from farrank_trec.errors import InputError
from farrank_trec.unfinished_run import UnfinishedRun, asked_of

MADE_BY = {"ranker": "v1", "depth": None}
FIRST = rank("q1", [("a", 0.1), ("b", 1 / 3)])
SECOND = rank("q2", [("c", -2.5)])


def killed(path: Path, **given: object) -> Path:
    """Leave the files of a program that finished two queries and was killed."""
    unfinished = UnfinishedRun(path, MADE_BY, **given)  # type: ignore[arg-type]
    unfinished.add("q1", FIRST)
    unfinished.add("q2", SECOND)
    unfinished.close()
    return unfinished.partial


def test_a_run_appears_whole_and_in_the_order_of_the_queries(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mine.trec"
    with UnfinishedRun(path, MADE_BY) as unfinished:
        unfinished.add("q2", SECOND)
        unfinished.add("q1", FIRST)
        assert not path.exists()
        run = unfinished.publish(["q1", "q2", "q3"], "mine")
    assert list(run) == ["q1", "q2"]
    assert read_run(path) == run == {"q1": FIRST, "q2": SECOND}
    assert [each.name for each in path.parent.iterdir()] == ["mine.trec"]


def test_a_kill_at_any_byte_keeps_the_queries_before_it(tmp_path: Path) -> None:
    partial = killed(tmp_path / "mine.trec")
    content = partial.read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        partial.write_bytes(content[:length])
        with UnfinishedRun(tmp_path / "mine.trec", MADE_BY, resume=True) as unfinished:
            finished = sum(end <= length for end in ends[1:])
            assert list(unfinished.finished) == ["q1", "q2"][:finished]
            unfinished.add("q3", rank("q3", [("d", 1.0)]))
        with UnfinishedRun(tmp_path / "mine.trec", MADE_BY, resume=True) as unfinished:
            assert list(unfinished.finished) == [*["q1", "q2"][:finished], "q3"]
            assert all(unfinished.finished[each[0].query_id] == each for each in (FIRST, SECOND)[:finished])
        partial.unlink()


def test_queries_that_ask_for_something_else_now_are_left_out(tmp_path: Path) -> None:
    asked = {"q1": asked_of("who", ["a", "b"]), "q2": asked_of("when", ["c"])}
    killed(tmp_path / "mine.trec", asked=asked)
    changed = asked | {"q2": asked_of("when", ["c", "d"])}
    with UnfinishedRun(tmp_path / "mine.trec", MADE_BY, resume=True, asked=changed) as unfinished:
        assert list(unfinished.finished) == ["q1"]
    assert asked_of("who", ["a", "b"]) != asked_of("who", ["b", "a"])


def test_parts_that_differ_do_not_mix(tmp_path: Path) -> None:
    killed(tmp_path / "mine.trec")
    with pytest.raises(InputError, match=r"ranker is 'v2' now and was 'v1'; name another file"):
        UnfinishedRun(tmp_path / "mine.trec", MADE_BY | {"ranker": "v2"}, resume=True)
    with pytest.raises(InputError, match="holds 2 queries of a run that was interrupted: resume it"):
        UnfinishedRun(tmp_path / "mine.trec", MADE_BY)


def test_two_programs_do_not_write_one_run(tmp_path: Path) -> None:
    with (
        UnfinishedRun(tmp_path / "mine.trec", MADE_BY),
        pytest.raises(InputError, match="another program writes this run"),
    ):
        UnfinishedRun(tmp_path / "mine.trec", MADE_BY)


@pytest.mark.parametrize(
    "content", [b"[1]\n", b"not JSON\n", b'{"made_by": {}, "format": 1}\n{"asked": 1}\n']
)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.trec.partial").write_bytes(content)
    with pytest.raises(InputError, match=r"mine.trec.partial: is not of this program, or is damaged"):
        UnfinishedRun(tmp_path / "mine.trec", {}, resume=True)


def test_nothing_is_left_of_a_run_without_a_query(tmp_path: Path) -> None:
    with UnfinishedRun(tmp_path / "mine.trec", MADE_BY):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file"):
        UnfinishedRun(tmp_path / "file" / "mine.trec", MADE_BY)
