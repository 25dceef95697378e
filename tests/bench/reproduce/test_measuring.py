"""Real servers rank three documents with a tiny ranker, which an index finds or a run gives."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from farrank_bench.first_stages import JudgedCollection
from farrank_bench.reproduce.cells import BI_ENCODER, Cell, Kept, Way, read_figures
from farrank_bench.reproduce.corpora import Corpus
from farrank_bench.reproduce.measuring import Times, built, measure
from farrank_trec import rank, read_qrels, read_run, write_qrels, write_run
from farrank_trec.errors import InputError

TEXTS = {
    "rhine": "the river Rhine flows to the sea",
    "po": "the river Po is in Italy",
    "bread": "bread needs salt",
}
QUERIES = {"q1": "river sea", "q2": "salt", "q3": "river"}
QRELS = {"q1": {"rhine": 2}, "q2": {"bread": 1}, "q3": {"po": 1}}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    lines = tmp_path / "texts.jsonl"
    lines.write_text(
        "".join(json.dumps({"id": doc_id, "text": text}) + "\n" for doc_id, text in TEXTS.items())
    )
    return Corpus(JudgedCollection("rivers", [str(lines)], QUERIES, QRELS))


def test_times_are_medians_by_round_and_one_percentile() -> None:
    times = Times()
    times.add(1, [1.0, 2.0, 9.0])
    times.add(1, [4.0, 3.0, 5.0])
    assert times.p50_ms() == {"1": (2.0, 4.0)}
    assert times.p99_ms()["1"] == pytest.approx(8.8, abs=0.1)
    assert times.calls() == {"1": 6}
    parts = Times()
    parts.add_parts([1.0, 2.0, 3.0, 4.0, 5.0], 2)
    assert parts.p50_ms() == {"1": (2.0, 4.5)}
    few = Times()
    few.add_parts([7.0], 3)
    assert few.p50_ms() == {"1": (7.0,)}


@pytest.mark.slow
def test_lucene_ranks_alone_and_the_index_is_made_once(corpus: Corpus, tmp_path: Path) -> None:
    kept = Kept(tmp_path / "out")
    cell = Cell("rivers", Way("lucene", candidates=10))
    figures = measure(cell, corpus, kept, rounds=2)
    run = read_run(kept.run(cell))
    assert run["q1"][0].doc_id == "rhine"
    assert {query_id: len(found) for query_id, found in run.items()} == {"q1": 2, "q2": 1, "q3": 2}
    assert read_qrels(kept.judgements("rivers")) == QRELS
    assert figures == read_figures(kept.figures(cell))
    assert (figures.questions, figures.calls) == (3, {"1": 3, "16": 6})
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in figures.p50_ms.values())
    assert set(figures.p50_ms) == {"1", "16"}
    folder = kept.folder / "indexes" / "rivers-lucene"
    made = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    assert figures.bytes_a_document == made / 3
    before = (folder / "farrank-index.json").stat().st_mtime_ns
    assert built(corpus, (), folder).seconds == figures.index_s
    assert (folder / "farrank-index.json").stat().st_mtime_ns == before
    # Without its time it counts as half made.
    folder.with_suffix(".json").unlink()
    built(corpus, (), folder)
    assert (folder / "farrank-index.json").stat().st_mtime_ns > before


@pytest.mark.slow
def test_a_server_ranks_what_an_index_finds_and_what_a_run_gives(
    corpus: Corpus, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    way = Way("maxp", str(tiny_rankers["maxp"]), "adaptive", 2, runtime="torch", precision="fp32")
    kept = Kept(tmp_path / "out")
    found_cell = Cell("rivers", way)
    # A query of an interrupted command is ranked again.
    kept.runs.mkdir(parents=True)
    (kept.runs / f"{found_cell.name}.trec.partial").write_text('{"format": 1}\n')
    figures = measure(found_cell, corpus, kept, rounds=1)
    assert figures.runs_on == "torch fp32, cpu"
    assert figures.calls == {"1": 3, "16": 3}
    assert figures.p99_ms["16"] > 0
    found = read_run(kept.run(found_cell))

    given = tmp_path / "given.trec"
    # The third document is beyond the candidates, and the last question is not judged.
    order = {"q1": ["rhine", "po", "bread"], "q2": ["bread"], "q3": ["po", "rhine"], "q9": ["po"]}
    write_run(
        given, {key: rank(key, [(each, -n) for n, each in enumerate(ids)]) for key, ids in order.items()}, "x"
    )
    sent = replace(corpus, given=given)
    given_cell = Cell("given", way)
    figures = measure(given_cell, sent, kept, rounds=1)
    assert figures.bytes_a_document is None
    assert figures.index_s is None
    ranked = read_run(kept.run(given_cell))
    scores = [
        {key: {each.doc_id: each.score for each in docs} for key, docs in run.items()}
        for run in (found, ranked)
    ]
    assert {key: set(of) for key, of in scores[1].items()} == {
        "q1": {"rhine", "po"},
        "q2": {"bread"},
        "q3": {"po", "rhine"},
    }
    for query_id, of in scores[0].items():
        assert scores[1][query_id] == pytest.approx(of, abs=1e-4)

    alone = Cell("given", Way("lucene", candidates=2))
    assert measure(alone, sent, kept, rounds=1).p50_ms == {}
    assert {key: [each.doc_id for each in of] for key, of in read_run(kept.run(alone)).items()} == {
        "q1": ["rhine", "po"],
        "q2": ["bread"],
        "q3": ["po", "rhine"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("first_stage", ["dense", "hybrid"])
def test_a_first_stage_finds_documents_by_their_vectors(
    first_stage: str, corpus: Corpus, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    ranker = str(tiny_rankers["biencoder"])
    way = Way(first_stage, ranker, "all", 3, first_stage, "torch", stored=("--encode", ranker))
    kept, cell = Kept(tmp_path / "out"), Cell("rivers", way)
    figures = measure(cell, corpus, kept, rounds=1)
    # "salt" is in one document: the others are found by their vectors.
    assert {each.doc_id for each in read_run(kept.run(cell))["q2"]} == {"bread", "rhine", "po"}
    assert figures.calls == {"1": 3, "16": 3}


@pytest.mark.slow
def test_a_peer_ranks_the_candidates_of_lucene_or_of_a_run(corpus: Corpus, tmp_path: Path) -> None:
    way = Way("bi", "embedded", "256 tokens", 2, peer=BI_ENCODER)
    kept = Kept(tmp_path / "out")
    cell = Cell("rivers", way)
    figures = measure(cell, corpus, kept, rounds=1)
    found = {key: {each.doc_id for each in of} for key, of in read_run(kept.run(cell)).items()}
    assert found == {"q1": {"rhine", "po"}, "q2": {"bread"}, "q3": {"rhine", "po"}}
    of_one = measure(Cell("rivers", replace(way, name="one", timed=0)), corpus, kept, rounds=2)
    assert of_one.calls == {"1": 3}
    assert set(of_one.p99_ms) == {"1"}
    assert figures.calls == {"1": 3, "16": 3}
    assert figures.bytes_a_document == 384 * 4
    given = tmp_path / "given.trec"
    write_run(given, {"q1": rank("q1", [("bread", 2), ("po", 1)])}, "x")
    cell = Cell("given", way)
    measure(cell, replace(corpus, given=given), kept, rounds=1)
    assert {key: {each.doc_id for each in of} for key, of in read_run(kept.run(cell)).items()} == {
        "q1": {"bread", "po"}
    }


def test_a_folder_with_other_questions_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.judgements("rivers").parent.mkdir(parents=True)
    write_qrels(kept.judgements("rivers"), {"q1": {"rhine": 1}})
    with pytest.raises(InputError, match="measured with other questions"):
        measure(Cell("rivers", Way("lucene")), corpus, kept, rounds=1)
