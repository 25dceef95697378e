"""Farrank as a model of MTEB: a task's figures are those of the ranker's own scores."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mteb
import pytest
from datasets import Dataset
from ir_measures import nDCG
from mteb.mocks import MockRerankingTask
from mteb.models import SearchProtocol

from farrank import Client, Reranker
from farrank_cli.spawn import spawned_server
from farrank_client.mteb import FarrankModel
from farrank_trec import rank
from farrank_trec.measures import evaluate
from support.judged_queries import CANDIDATES, QRELS, QUERIES, TEXTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mteb.md"


class SmallTask(MockRerankingTask):  # type: ignore[misc]  # MTEB is not typed
    """A reranking task of our own documents, which nothing has to download."""

    def load_data(self, **_: Any) -> None:
        documents = [{"id": doc_id, "title": "", "text": text} for doc_id, text in TEXTS.items()]
        queries = [{"id": query_id, "text": text} for query_id, text in QUERIES.items()]
        split = {
            "corpus": Dataset.from_list(documents),
            "queries": Dataset.from_list(queries),
            "relevant_docs": QRELS,
            "top_ranked": {query_id: CANDIDATES[query_id] for query_id in QUERIES},
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


@pytest.fixture(scope="module")
def ranker(tiny_rankers: dict[str, Path]) -> Iterator[Reranker]:
    with Reranker(str(tiny_rankers["maxp"])) as opened:
        yield opened


def own_measure(client: Client, **options: Any) -> float:
    run = {}
    for query_id, text in QUERIES.items():
        asked = {doc_id: TEXTS[doc_id] for doc_id in CANDIDATES[query_id]}
        ranking = client.rerank(text, asked, **options)
        ids = [each.id for each in ranking.results]
        run[query_id] = rank(query_id, zip(ids, ranking.run_scores(), strict=True))
    values = evaluate(QRELS, run, [nDCG @ 10])["nDCG@10"]
    return sum(values.values()) / len(values)


def test_a_task_measures_the_rankers_own_scores(ranker: Reranker, tiny_rankers: dict[str, Path]) -> None:
    model = FarrankModel(ranker)
    assert isinstance(model, SearchProtocol)
    found = mteb.evaluate(model, SmallTask(), cache=None, show_progress_bar=False)
    (scores,) = found.task_results[0].scores["test"]
    assert scores["ndcg_at_10"] == pytest.approx(own_measure(ranker), abs=1e-5)
    flags = [f"--ranker=maxp={tiny_rankers['maxp']}", f"--ranker=avgp={tiny_rankers['avgp']}"]
    with spawned_server([*flags, "--log-level=warning"]) as server, Client(server.address) as client:
        served = mteb.evaluate(
            FarrankModel(client, ranker="avgp"), SmallTask(), cache=None, show_progress_bar=False
        )
        (scores,) = served.task_results[0].scores["test"]
        assert scores["ndcg_at_10"] == pytest.approx(own_measure(client, ranker="avgp"), abs=1e-5)
        assert served.model_name == "farrank/avgp"
        with pytest.raises(ValueError, match="there is no 'x', only maxp, avgp"):
            FarrankModel(client, ranker="x")


def test_titles_and_instructions_are_read(ranker: Reranker) -> None:
    model = FarrankModel(ranker)
    (info,) = ranker.rankers().rankers
    assert (model.mteb_model_meta.name, model.mteb_model_meta.revision) == ("farrank/ranker", info.version)
    model.index(
        Dataset.from_list(
            [{"id": "a", "title": "Sea", "text": "ships"}, {"id": "b", "title": None, "text": "x"}]
        )
    )
    queries = Dataset.from_list(
        [{"id": "q", "text": "where", "instruction": "at sea"}, {"id": "r", "text": "?", "instruction": ""}]
    )
    found = model.search(queries, top_ranked={"q": ["b", "a"]})
    own = ranker.rerank("where at sea", {"a": "Sea\n\nships", "b": "x"})
    assert found == {"q": pytest.approx({each.id: each.score for each in own.results}, abs=1e-5), "r": {}}
    with pytest.raises(ValueError, match="a ranker needs candidates"):
        model.search(queries)
    with pytest.raises(ValueError, match="no documents of the task: c"):
        model.search(queries, top_ranked={"q": ["c"]})
    with pytest.raises(TypeError, match="there is no option window"):
        FarrankModel(ranker, window=3)
    with pytest.raises(TypeError, match="top_n: MTEB wants a score for every candidate"):
        FarrankModel(ranker, top_n=3)


def test_without_mteb_the_extra_is_named() -> None:
    code = "import sys; sys.modules['mteb'] = None\nimport farrank_client.mteb"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'farrank[mteb]'" in done.stderr


def test_the_documented_session(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a task that is here in the place of one to download."""
    (session,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    asked: list[object] = []

    def get_tasks(tasks: list[str]) -> list[SmallTask]:
        asked.append(tasks)
        return [SmallTask()]

    monkeypatch.setattr(mteb, "get_tasks", get_tasks)
    evaluated = mteb.evaluate
    monkeypatch.setattr(mteb, "evaluate", lambda *given: evaluated(*given, cache=None))
    exec(compile(session, str(PAGE), "exec"), {})
    assert asked == [["AskUbuntuDupQuestions"]]
    assert 0 < float(capsys.readouterr().out.splitlines()[-1]) <= 1
