"""Calibration finds the cheapest plan that keeps the bound, and confirms it on other queries."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.features import Features
from farrank_rankers.files.depth_file import write_plan
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_server.config.schema import DepthConfig, RankerConfig, ServerConfig
from farrank_server.engine.device.device_loop import DeviceThread
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_rankers
from farrank_server.metrics import Metrics
from farrank_training.depth_calibration import (
    PLANS,
    calibrate,
    fewest_queries,
    replayed,
    simplest,
)
from farrank_training.errors import TrainingError
from farrank_training.validation import ValidationSet
from farrank_trec.kept_shares import kept_shares
from support.engine_bench import QUERY, Bench
from support.training_groups import MakeRanker, Texts

pytestmark = pytest.mark.usefixtures("one_thread")

# Chunks of 8 tokens. BM25 orders them as they are numbered; only the last one may hold the word that decides.
FILLER = "text " * 8
BEST = ["search engine search engine " + "text " * 4, "search engine " + "text " * 6]


def document(decides: bool, place: int) -> str:
    """Put a chunk that may decide at a place of BM25's order, counted from 1; it is the last of the text."""
    before = [BEST[min(number, 1)] for number in range(place - 1)]
    return FILLER * 2 + "".join(before) + ("search score " if decides else "search text ") + "text " * 6


class Marked(nn.Module):
    """Encodes a chunk as whether it holds a token."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.tensor(float(token)))

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Features:
        return Features((input_ids == int(self.token)).any(dim=1).float()[:, None])


class First(nn.Module):
    """Scores a chunk by its vector's first number."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors[..., 0]


class Noisy(First):
    """Scores chunks of one text differently from the seventh digit on."""

    def forward(self, vectors: Tensor) -> Tensor:
        return super().forward(vectors) + 5e-8 * torch.arange(vectors.shape[-2])


class Damaged(nn.Module):
    """Scores no chunk."""

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.full_like(vectors[..., 0], float("nan"))


@pytest.fixture
def ranker(make_ranker: MakeRanker) -> Ranker:
    """A ranker that prefers documents with the word `score`, whose chunks of 8 tokens do not overlap."""
    found = make_ranker("maxp")
    reader = found.reader
    spec = replace(reader.spec, chunking=Chunking("sliding", 8, 8, WHOLE_DOCUMENT))
    found.reader = Reader(spec, reader.tokenizer, reader.backbone)
    found.encoder = Marked(int(reader.tokenizer.ids("score")[0]))  # type: ignore[assignment]
    found.aggregator.head = First()
    return found


def judged(places: list[int]) -> ValidationSet:
    """Make queries whose relevant document is decided by the chunk at a place of BM25's order.

    The relevant document loses every tie.
    """
    texts = Texts()
    for number, place in enumerate(places):
        texts |= {f"{name}{number}": document(name == "a", place) for name in "abc"}
    queries = {f"q{number}": "search engine" for number in range(len(places))}
    return ValidationSet(
        queries,
        {f"q{number}": {f"a{number}": 1} for number in range(len(places))},
        {f"q{number}": [f"{name}{number}" for name in "cba"] for number in range(len(places))},
        texts,
    )


def test_three_chunks_are_the_cheapest_that_are_enough(ranker: Ranker) -> None:
    seen: list[int] = []
    plan = calibrate(ranker, judged([3] * 80), keep=0.9, measure="RR", progress=seen.append)
    assert replace(plan, figures=None) == DepthPlan((Round(1.0, 3),))
    figures = plan.figures
    assert figures is not None
    assert (figures.measure, figures.keep, figures.queries) == ("MRR", 0.9, 40)
    # The query of which all is lost is drawn at most three times in 97.5% of the resamples.
    assert (figures.kept, figures.high) == (1.0, 1.0)
    assert figures.low == pytest.approx(1 - 3 / 41)
    # Three chunks of 8 tokens, each with a query of 2 and three special tokens.
    assert (figures.chunks, figures.tokens) == (3.0, 3 * 13.0)
    assert seen == list(range(1, 81))


def test_a_lower_bound_needs_fewer_chunks(ranker: Ranker) -> None:
    # Without the chunk that decides, the relevant document is the last of three.
    plan = calibrate(ranker, judged([3] * 60), keep=0.25, measure="RR")
    assert plan.rounds == (Round(1.0, 1),)
    assert plan.figures is not None
    assert plan.figures.kept == pytest.approx(1 / 3)


def test_two_rounds_are_chosen_if_they_are_cheaper(ranker: Ranker) -> None:
    some = judged([2] * 80)
    # The relevant document comes first in the first round: it is read on.
    for number in range(80):
        some.candidates[f"q{number}"].reverse()
    plan = calibrate(ranker, some, keep=0.9, measure="RR")
    assert plan.rounds == (Round(1.0, 1), Round(0.5, 1))
    assert plan.figures is not None
    assert plan.figures.chunks == pytest.approx(5 / 3)


def test_of_plans_that_cost_about_the_same_the_simplest_is_chosen() -> None:
    costs = np.array([100.0, 130.0, 126.0, 125.0, 200.0])
    assert simplest(np.array([1, 2, 3, 4]), costs) == 1
    assert simplest(np.array([2, 4]), costs) == 2
    rounds = [len(plan.rounds) for plan in PLANS]
    assert rounds == sorted(rounds)


def test_a_bound_that_no_plan_keeps_is_refused(ranker: Ranker) -> None:
    with pytest.raises(TrainingError, match=r"90.0% of MRR: .* a smaller bound is needed"):
        calibrate(ranker, judged([14] * 60), keep=0.9, measure="RR")


def test_an_uncertain_plan_says_how_many_queries_are_needed(ranker: Ranker) -> None:
    with pytest.raises(TrainingError, match=r"about [\d,]+ judged queries in all are needed") as raised:
        calibrate(ranker, judged([14] + [3] * 59), keep=0.9, measure="RR")
    assert "on 30 queries, with a lower bound of 8" in str(raised.value)


def test_queries_without_a_relevant_candidate_confirm_nothing(ranker: Ranker) -> None:
    some = judged([1] * 70)
    for number in range(0, 70, 2):
        some.qrels[f"q{number}"] = {"elsewhere": 1} if number % 4 else {f"a{number}": 0}
    with pytest.raises(TrainingError, match=r"keeps 100.0% on 35 queries, with a lower bound of [78]"):
        calibrate(ranker, some, keep=0.9, measure="RR")


@pytest.mark.parametrize("keep", [0.9, 0.97, 0.99])
def test_the_fewest_queries_confirm_a_plan_that_loses_nothing_and_no_other(keep: float) -> None:
    half = fewest_queries(keep) // 2
    # A plan that loses all of a share of 1 - keep of the queries has one chance in twenty.
    assert keep**half < 0.055
    kept = np.ones((3, half))
    kept[2, 0] = 0.0
    _, low, _ = kept_shares(kept, resamples=10_000, seed=0)
    assert low[1] >= keep > low[2]
    _, low, _ = kept_shares(kept[:, : int(0.7 * half)], resamples=10_000, seed=0)
    assert low[1] < keep


@pytest.mark.parametrize(("queries", "keep", "fewest"), [(49, 0.5, 50), (199, 0.97, 200)])
def test_few_queries_are_refused(ranker: Ranker, queries: int, keep: float, fewest: int) -> None:
    with pytest.raises(TrainingError, match=rf"^{queries} queries .* to keep {keep:.1%}, .* least {fewest}$"):
        calibrate(ranker, judged([3] * queries), keep=keep, measure="RR")


def test_a_query_without_a_token_is_refused_before_anything_is_read(ranker: Ranker) -> None:
    some, seen = judged([3] * 60), list[int]()
    some.queries = {**some.queries, "q59": ""}
    with pytest.raises(TrainingError, match="query 'q59' holds no token; it needs at least 1"):
        calibrate(ranker, some, keep=0.9, measure="RR", progress=seen.append)
    assert not seen


def test_a_score_that_is_not_finite_is_refused(ranker: Ranker) -> None:
    ranker.aggregator.head = Damaged()
    with pytest.raises(TrainingError, match=r"query 'q\d+': document 'c\d+' has no finite score"):
        calibrate(ranker, judged([3] * 60), keep=0.9, measure="RR")


def test_scores_are_rounded_as_those_of_the_server(ranker: Ranker) -> None:
    ranker.aggregator.head = Noisy()
    texts = [document(decides=False, place=place) for place in (1, 5, 3)]
    for keys, _, _ in replayed(ranker, ranker.reader.read_query("search engine"), texts):
        assert len(set(keys)) <= 2  # a plan of two rounds puts the documents of the second first
    texts = [document(decides=True, place=place) for place in (1, 5, 3)]
    full, *_ = replayed(ranker, ranker.reader.read_query("search engine"), texts)
    assert full[0].tolist() == [1.0] * 3


def test_a_ranker_of_one_chunk_is_refused(make_ranker: MakeRanker) -> None:
    with pytest.raises(TrainingError, match="depth cannot be calibrated: family firstp scores"):
        calibrate(make_ranker("firstp"), judged([3] * 60), keep=0.97, measure="RR")


def long_text(noun: str, number: int) -> str:
    """Make a document of 1 to 25 chunks of the tiny rankers, with the query's words at a place of its own."""
    filler = f"a {noun} goes over the land towards the harbour and bread is baked from flour "
    return filler * (20 * number + 4) + "the river rises here " + filler * (9 * (number % 4) + 5)


NOUNS = ("ship", "train", "horse", "cloud", "bird", "letter", "king", "child", "wheel")
TEXTS = tuple(long_text(noun, number) for number, noun in enumerate(NOUNS))


@pytest.mark.parametrize("family", ["maxp", "cedr-knrm", "parade-attn", "parade-transf-rand"])
async def test_the_server_reads_and_ranks_as_the_replay_does(
    tiny_rankers: dict[str, Path], tmp_path: Path, family: str
) -> None:
    folder = Path(shutil.copytree(tiny_rankers[family], tmp_path / family))
    spec = open_reader(folder).spec
    if family == "parade-transf-rand":
        spec = replace(spec, options=replace(spec.options, trained_chunks=4))  # type: ignore[call-arg]
        (folder / SPEC_FILE).write_text(spec.to_json())
    ranker = open_ranker(folder).eval()
    full, *plans = replayed(ranker, ranker.reader.read_query(QUERY), TEXTS)
    cases = {DepthConfig("all"): full}
    for rounds in ((Round(1.0, 2),), (Round(1.0, 2), Round(0.5, 4))):
        plan = DepthPlan(rounds, 0.2)
        write_plan(folder, plan)
        cases[DepthConfig("adaptive")] = plans[PLANS.index(plan)]
        config = ServerConfig(rankers={"it": RankerConfig(str(folder))})
        cache, metrics = DocumentCache(0), Metrics()
        engine = Engine(config, load_rankers(config, cache), DeviceThread(), cache, metrics)
        try:
            for depth, (keys, chunks, tokens) in cases.items():
                result = await Bench(engine, {}, metrics).rerank(TEXTS, ranker="it", depth=depth)
                order = sorted(range(len(TEXTS)), key=lambda index: result.documents[index].rank)
                assert order == np.argsort(-keys, kind="stable").tolist()
                assert result.tally.chunks / len(TEXTS) == pytest.approx(chunks)
                assert result.tally.tokens / len(TEXTS) == pytest.approx(tokens)
        finally:
            engine.close()
        assert result.rounds == len(rounds)


def test_only_chunks_that_some_way_of_reading_has_are_encoded(make_ranker: MakeRanker) -> None:
    ranker = make_ranker("parade-transf-rand").eval()
    reader = ranker.reader
    options = replace(reader.spec.options, trained_chunks=2)  # type: ignore[call-arg]
    spec = replace(reader.spec, options=options, chunking=Chunking("sliding", 8, 8, WHOLE_DOCUMENT))
    ranker.reader = Reader(spec, reader.tokenizer, reader.backbone)
    encoded: list[int] = []
    ranker.encoder.register_forward_hook(lambda module, inputs, output: encoded.append(len(inputs[0])))
    text = FILLER * 30 + "search engine " + FILLER
    list(replayed(ranker, ranker.reader.read_query("search engine"), [text]))
    # The first two, the two with the highest BM25, and at most two that a prior prefers to them.
    assert 2 < sum(encoded) <= 6
