"""Runs in the field's format: read strictly, ordered as by trec_eval, written without loss."""

import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_trec import (
    rank,
    read_candidates,
    read_qrels,
    read_queries,
    read_run,
    write_qrels,
    write_queries,
    write_run,
)
from farrank_trec.errors import InputError

FINITE = st.floats(-1e30, 1e30, allow_nan=False)
IDS = st.text("abcXYZ019-_é", min_size=1, max_size=6)


def read_lines(folder: Path, *lines: str) -> dict[str, list[str]]:
    """Read a run with both readers, which must agree on its order, or on the error."""
    path = folder / "some.run"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    found: list[dict[str, list[str]]] = []
    wrong: list[InputError] = []
    for read in (ids_of_run, lambda path: dict(read_candidates(path, 100))):
        try:
            found.append(read(path))
        except InputError as error:
            wrong.append(error)
    if wrong:
        assert len(set(map(str, wrong))) == 1
        assert not found
        raise wrong[0]
    assert list(found[0].items()) == list(found[1].items())
    return found[0]


def ids_of_run(path: Path) -> dict[str, list[str]]:
    return {query_id: [each.doc_id for each in ranked] for query_id, ranked in read_run(path).items()}


def test_the_score_orders_and_the_written_rank_does_not(tmp_path: Path) -> None:
    run = read_lines(tmp_path, "q2 Q0 a 1 0.5 tag", "q2\tQ0\tb\t2\t1.5\ttag", "q1 Q0 c 7 -3 tag")

    assert run == {"q2": ["b", "a"], "q1": ["c"]}
    assert list(run) == ["q2", "q1"]


def test_equal_scores_stand_by_doc_id_descending() -> None:
    ranked = rank("q", [("a", 1.0), ("c", 1.0), ("d", 0.5), ("b", 1.0)])

    assert [(each.doc_id, each.rank) for each in ranked] == [("c", 1), ("b", 2), ("a", 3), ("d", 4)]


def test_what_32_bits_cannot_tell_apart_is_a_tie() -> None:
    assert [each.doc_id for each in rank("q", [("a", 1.0 + 1e-9), ("b", 1.0)])] == ["b", "a"]
    assert [each.doc_id for each in rank("q", [("a", 1.0 + 1e-6), ("b", 1.0)])] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("q Q0 d 1 0.5", "5 columns; a run has 6: query_id Q0 doc_id rank score tag"),
        ("q Q0 d one 0.5 t", "rank 'one' must be a whole number"),
        ("q Q0 d 1 high t", "score 'high' must be a number"),
        ("q Q0 d 1 1_0 t", "score '1_0' must be a number"),
        ("q Q0 d 1 nan t", "score 'nan' must be finite"),
        ("q Q0 first 2 0.5 t", "document 'first' appears twice for query 'q'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InputError) as failure:
        read_lines(tmp_path, "q Q0 first 1 0.9 t", "", line)

    # Blank lines are skipped, but counted.
    assert str(failure.value) == f"{tmp_path}/some.run:3: {says}"


def test_an_empty_run_a_missing_file_and_broken_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"some\.run: the run is empty"):
        read_lines(tmp_path, "")
    with pytest.raises(InputError, match=r"nowhere\.run: No such file"):
        read_run(tmp_path / "nowhere.run")
    (tmp_path / "latin").write_bytes(b"q Q0 d 1 1 t\nq Q0 \xe9 2 0.5 t\n")
    with pytest.raises(InputError, match=r"latin:2: not UTF-8 \(byte 6 of the line\)"):
        read_run(tmp_path / "latin")


def test_gzip_is_unpacked_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"q Q0 d 1 1 t\n")
    (tmp_path / "whole.gz").write_bytes(packed)
    (tmp_path / "cut.gz").write_bytes(packed[:-6])
    (tmp_path / "plain.gz").write_bytes(b"q Q0 d 1 1 t\n")

    assert list(read_run(tmp_path / "whole.gz")) == ["q"]
    for name in ("cut.gz", "plain.gz"):
        with pytest.raises(InputError, match=rf"{name}:\d+: the gzip file is damaged"):
            read_run(tmp_path / name)


@given(st.dictionaries(IDS, st.dictionaries(IDS, FINITE, min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_written_run_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[str, dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("runs") / "new" / "my.run"
    run = {query_id: rank(query_id, documents.items()) for query_id, documents in scores.items()}

    write_run(path, run, tag="me")

    assert read_run(path) == run
    assert {line.split()[5] for line in path.read_text("utf-8").splitlines()} == {"me"}


LINES = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from("defghé"), st.sampled_from([-1.0, 0.5, 0.5 + 1e-9, 1e30])
    ),
    min_size=1,
    unique_by=lambda line: line[:2],
)


@given(LINES, st.integers(1, 6))
def test_candidates_are_the_first_of_a_run_in_whatever_order_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str, float]], depth: int
) -> None:
    path = tmp_path_factory.mktemp("runs") / "mixed.run"
    path.write_text(
        "".join(f"{query} Q0 {doc_id} 1 {score!r} t\n" for query, doc_id, score in lines), "utf-8"
    )
    expected = [(query_id, doc_ids[:depth]) for query_id, doc_ids in ids_of_run(path).items()]
    assert list(read_candidates(path, depth).items()) == expected


def test_a_document_that_stands_twice_is_named_wherever_it_does(tmp_path: Path) -> None:
    lines = ["q Q0 a 1 3 t", "q Q0 b 1 2 t", "p Q0 b 1 1 t", "q Q0 a 1 1 t", "q Q0"]
    with pytest.raises(InputError, match=r"some\.run:4: document 'a' appears twice for query 'q'"):
        read_lines(tmp_path, *lines)


def test_a_line_of_candidates_takes_few_bytes(tmp_path: Path) -> None:
    """A run's objects take some 200 bytes per line: 7 GB for MS MARCO's 36.7 million lines."""
    path, queries, depth = tmp_path / "large.run", 300, 100
    path.write_text(
        "".join(
            f"{query} Q0 D{(query + 7 * place) % 400} {place} {-place} t\n"
            for query in range(queries)
            for place in range(depth)
        )
    )
    tracemalloc.start()
    try:
        found = read_candidates(path, depth)
        kept, most = (size / (queries * depth) for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert len(found["299"]) == depth
    assert kept < 10
    assert most < 20


def test_a_name_that_would_not_stay_in_its_column_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tag 'my tag' holds white space or control characters"):
        write_run(tmp_path / "r", {"q": rank("q", [("d", 1.0)])}, tag="my tag")
    with pytest.raises(InputError, match="doc_id 'a b' holds"):
        write_run(tmp_path / "r", {"q": rank("q", [("a b", 1.0)])}, tag="t")


@given(st.dictionaries(IDS, st.dictionaries(IDS, st.integers(-2, 4), min_size=1), min_size=1, max_size=4))
def test_written_judgements_and_queries_read_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, qrels: dict[str, dict[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("written")
    write_qrels(folder / "qrels.txt", qrels)
    assert read_qrels(folder / "qrels.txt") == qrels
    queries = {query_id: f"what is {query_id}" for query_id in qrels}
    write_queries(folder / "queries.tsv", {key: text.replace(" ", " \t\n") for key, text in queries.items()})
    assert read_queries(folder / "queries.tsv") == queries


def test_an_id_that_would_not_stay_in_its_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="doc_id 'a b' holds white space"):
        write_qrels(tmp_path / "qrels.txt", {"q": {"a b": 1}})
    with pytest.raises(InputError, match=r"query_id 'a\\tb' holds white space"):
        write_queries(tmp_path / "queries.tsv", {"a\tb": "text"})


def test_ms_marcos_form_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run.tsv"
    run.write_text("q1\tb\t2\nq1\ta\t1\nq2\tc\t1\nq1\td\t10\n")
    assert {
        query_id: [(each.doc_id, each.score) for each in of] for query_id, of in read_run(run).items()
    } == {
        "q1": [("a", 1.0), ("b", 0.5), ("d", 0.1)],
        "q2": [("c", 1.0)],
    }
    assert dict(read_candidates(run, 2)) == {"q1": ["a", "b"], "q2": ["c"]}
    for line, said in (
        ("q1 x 0", "rank '0' must be a whole number from 1"),
        ("q1 x one", "rank 'one' must be"),
        ("q1 Q0 x 1 1 t", "6 columns; a run has 3: query_id doc_id rank"),
    ):
        run.write_text(f"q1\tb\t2\n{line}\n")
        with pytest.raises(InputError, match=f"run.tsv:2: {said}"):
            read_run(run)
