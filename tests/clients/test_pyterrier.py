"""PyTerrier's transformers, and that its experiments measure as `farrank loadtest accuracy` does."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
from ir_measures import AP, RR, nDCG

from farrank import AdaptiveDepth, Client, InvalidArgument, Reranker
from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client.pyterrier import FarrankReranker, FarrankSearch
from farrank_loadtest.accuracy.accuracy_report import REPORT, Report
from farrank_loadtest.accuracy.test_set import RETRIEVER
from farrank_trec import rank, write_run
from support.field_files import write_lines
from support.judged_queries import CANDIDATES, QRELS, QUERIES, TEXTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pyterrier.md"
TOPICS = pd.DataFrame(list(QUERIES.items()), columns=["qid", "query"])
JUDGED = pd.DataFrame(
    [(query_id, doc_id, grade) for query_id, of in QRELS.items() for doc_id, grade in of.items()],
    columns=["qid", "docno", "label"],
)
FIRST = pd.DataFrame(
    [
        (query_id, QUERIES[query_id], doc_id, TEXTS[doc_id], -float(place), place, f"{query_id}/{doc_id}")
        for query_id in QUERIES
        for place, doc_id in enumerate(CANDIDATES[query_id])
    ],
    columns=["qid", "query", "docno", "text", "score", "rank", "mine"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same test set as files, and its index."""
    folder = tmp_path_factory.mktemp("pyterrier")
    first = {
        query_id: rank(
            query_id, ((doc_id, -float(place)) for place, doc_id in enumerate(CANDIDATES[query_id]))
        )
        for query_id in QUERIES
    }
    write_run(folder / "bm25.trec", first, "bm25")
    write_lines(folder / "topics.tsv", [f"{query_id}\t{text}" for query_id, text in QUERIES.items()])
    write_lines(folder / "docs.jsonl", [{"id": doc_id, "text": text} for doc_id, text in TEXTS.items()])
    write_lines(
        folder / "qrels.txt",
        [f"{row.qid} 0 {row.docno} {row.label}" for row in JUDGED.itertuples(index=False)],
    )
    assert main(["index", str(folder / "docs.jsonl"), "--out", str(folder / "index")]) == 0
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    flags = [f"--ranker=ranker={tiny_rankers['maxp']}", f"--index=things={folder / 'index'}"]
    with spawned_server([*flags, "--log-level=warning"]) as spawned:
        yield spawned


@pytest.fixture(params=["server", "process"])
def client(
    request: pytest.FixtureRequest, server: SpawnedServer, folder: Path, tiny_rankers: dict[str, Path]
) -> Iterator[Client]:
    if request.param == "server":
        opened = Client(server.address)
    else:
        opened = Reranker(str(tiny_rankers["maxp"]), indexes={"things": folder / "index"})
    with opened:
        yield opened


def test_an_experiment_measures_as_the_load_test_does(
    client: Client, server: SpawnedServer, folder: Path, tmp_path: Path
) -> None:
    measures = [nDCG @ 10, RR, AP]
    pipelines = [pt.Transformer.from_df(FIRST), pt.Transformer.from_df(FIRST) >> FarrankReranker(client)]
    found = pt.Experiment(pipelines, TOPICS, JUDGED, measures, names=["first", "farrank"], perquery=True)
    flags = [f"--candidates={folder / 'bm25.trec'}", f"--queries={folder / 'topics.tsv'}"]
    flags += [f"--collection={folder / 'docs.jsonl'}", f"--qrels={folder / 'qrels.txt'}", "--ranker=ranker"]
    flags += [f"--measure={each}" for each in measures]
    out = tmp_path / "out"
    assert main(["loadtest", "accuracy", *flags, f"--target={server.address}", f"--out={out}"]) == 0
    report = Report.read_json(out / REPORT)
    means = {row.model: {name: cell.mean for name, cell in row.cells.items()} for row in report.rows}
    for name, model in (("first", RETRIEVER), ("farrank", "ranker")):
        rows = found[found["name"] == name]
        for measure in measures:
            mean = rows[rows["measure"] == str(measure)]["value"].mean()
            assert mean == pytest.approx(means[model][str(measure)], abs=1e-6)


def test_the_frame_stays_but_for_scores_and_ranks(client: Client) -> None:
    shuffled = FIRST.sample(frac=1, random_state=3)
    before = shuffled.copy()
    ranked = FarrankReranker(client).transform(shuffled)
    pd.testing.assert_frame_equal(shuffled, before)
    assert set(ranked.columns) == set(FIRST.columns)
    assert (ranked["mine"] == ranked["qid"] + "/" + ranked["docno"]).all()
    assert (ranked["text"] == ranked["docno"].map(TEXTS)).all()
    for query_id, group in ranked.groupby("qid"):
        own = client.rerank(QUERIES[query_id], [(doc, TEXTS[doc]) for doc in CANDIDATES[query_id]])
        scores = {each.id: each.score for each in own.results}
        assert dict(zip(group["docno"], group["score"], strict=True)) == pytest.approx(scores, abs=1e-5)
        assert list(group["rank"]) == list(range(len(group)))
        assert group["score"].is_monotonic_decreasing


def test_an_index_has_the_texts(client: Client) -> None:
    whole = FarrankReranker(client).transform(FIRST)
    by_id = FarrankReranker(client, index="things").transform(FIRST.drop(columns="text"))
    assert list(by_id["docno"]) == list(whole["docno"])
    assert list(by_id["score"]) == pytest.approx(list(whole["score"]), abs=1e-5)


def test_a_search_is_a_retriever(client: Client) -> None:
    topics = TOPICS.assign(mine=1)
    pipeline = FarrankSearch(client, k=3, return_texts=True) % 2
    found = pipeline.transform(topics)
    assert set(found.columns) == {"qid", "query", "mine", "docno", "text", "score", "rank"}
    assert (found["text"] == found["docno"].map(TEXTS)).all()
    assert found.groupby("qid").size().max() == 2


@pytest.mark.parametrize("return_texts", [False, True])
def test_a_search_that_finds_nothing_has_the_same_columns(client: Client, return_texts: bool) -> None:
    search = FarrankSearch(client, return_texts=return_texts)
    nothing = search.transform(pd.DataFrame([("q", "zzz", 1.0)], columns=["qid", "query", "score"]))
    found = search.transform(TOPICS.assign(score=1.0))
    assert not len(nothing)
    assert len(found)
    assert list(nothing.columns) == list(found.columns)
    assert list(nothing.dtypes[["score", "rank"]]) == list(found.dtypes[["score", "rank"]])
    if return_texts:
        reranked = (search >> FarrankReranker(client)).transform(TOPICS.head(1).assign(query="zzz"))
        assert set(reranked.columns) == {"qid", "query", "docno", "text", "score", "rank"}


def test_adaptive_depth_keeps_its_order(client: Client) -> None:
    depth = AdaptiveDepth(chunks=1.5)
    ranked = FarrankReranker(client, depth=depth).transform(FIRST)
    for query_id, group in ranked.groupby("qid"):
        asked = [(doc_id, TEXTS[doc_id]) for doc_id in CANDIDATES[query_id]]
        own = client.rerank(QUERIES[query_id], asked, depth=depth)
        assert list(group["docno"]) == [each.id for each in own.results]
        assert group["score"].is_monotonic_decreasing


def test_wrong_frames_and_options(client: Client) -> None:
    with pytest.raises(KeyError, match="the results have no column 'text'"):
        FarrankReranker(client).transform(FIRST.drop(columns="text"))
    with pytest.raises(KeyError, match="the topics have no column 'query'"):
        FarrankSearch(client).transform(TOPICS[["qid"]])
    with pytest.raises(TypeError, match="there is no option window"):
        FarrankReranker(client, window=3)
    with pytest.raises(TypeError, match="top_n: would drop documents"):
        FarrankReranker(client, top_n=3)
    with pytest.raises(InvalidArgument, match="query: is empty"):
        FarrankReranker(client).transform(FIRST.assign(query=""))
    empty: Any = FarrankReranker(client).transform(FIRST.head(0))
    assert not len(empty)
    assert {"score", "rank"} <= set(empty.columns)


def test_without_pyterrier_the_extra_is_named() -> None:
    code = "import sys; sys.modules['pyterrier'] = None\nimport farrank_client.pyterrier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'farrank[pyterrier]'" in done.stderr


def test_the_documented_session(folder: Path) -> None:
    (session,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", session], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"farrank +[01]\.\d+", done.stdout), done.stdout
