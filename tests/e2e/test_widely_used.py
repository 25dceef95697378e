"""Static embeddings, cut vectors and prompted models are served as they are, and exported."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from farrank_client import AsyncClient, Document, RetryPolicy
from farrank_rankers.backbones.published_config import SINCE_5
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from support.exported_rankers import export_into
from support.sentence_modules import Pooling, StaticEmbedding, Transformer
from support.tiny_tokenizers import save_tokenizer, wordpiece

QUERY = "which search engine ranks a long document"
DOCUMENTS = ["windows slide over text", "", "passages of the long document score by a query", "hello world"]

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders as published, and artifacts of two of them with exports."""
    made = tmp_path_factory.mktemp("widely-used")
    folders = {name: made / name for name in ("bare", "pair", "dual", "static", "cut", "asked", "table")}
    saved = save_tokenizer(wordpiece(), folders["bare"], "bert")
    config = AutoConfig.for_model(
        "bert",
        vocab_size=len(saved),
        pad_token_id=saved.pad_token_id,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.25,
        num_labels=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folders["bare"])
        static = StaticEmbedding(wordpiece(), embedding_dim=24)
        nn.init.normal_(static.embedding.weight)
    # sentence-transformers 5.1, beside transformers 4.57, has cross-encoders without prompts.
    asked: dict[str, Any] = {"prompts": {"ask": "hello world "}, "default_prompt_name": "ask"}
    CrossEncoder(str(folders["bare"]), device="cpu", **(asked if SINCE_5 else {})).save_pretrained(
        str(folders["pair"])
    )
    body = Transformer(str(folders["bare"]))
    prompts = {"query": "query: ", "document": "passage: "}
    dual = SentenceTransformer(
        modules=[body, Pooling(32, pooling_mode="mean")], device="cpu", prompts=prompts
    )
    dual.save(str(folders["dual"]), create_model_card=False)
    SentenceTransformer(modules=[static], device="cpu").save(str(folders["static"]), create_model_card=False)
    save_ranker(open_ranker(folders["dual"], truncate_dim=8, window=60), made / "artifact-cut")
    save_ranker(open_ranker(folders["pair"], family="firstp", window=60), made / "artifact-asked")
    save_ranker(open_ranker(folders["static"]), made / "artifact-table")
    names = ("cut", "asked", "table")
    export_into(made, {name: made / f"artifact-{name}" for name in names}, names)
    return folders


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folders: Mapping[str, Path]) -> AsyncIterator[Replica]:
    dual = str(folders["dual"])
    config = ServerConfig(
        rankers={
            "static": RankerConfig(str(folders["static"])),
            "pair": RankerConfig(str(folders["pair"]), family="firstp", window=60),
            "dual": RankerConfig(dual, window=60),
            "truncated": RankerConfig(dual, window=60, truncate_dim=8),
            "other prompts": RankerConfig(dual, window=60, query_prefix="hello ", document_prefix=""),
            **{
                f"{name}, {runtime}": RankerConfig(str(folders[name]), runtime=runtime, precision="fp32")
                for name in ("cut", "asked", "table")
                for runtime in ("onnx", "openvino")
            },
        },
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


async def answered(server: Replica, ranker: str) -> list[float]:
    documents = [Document(str(index), text) for index, text in enumerate(DOCUMENTS)]
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        ranking = await client.rerank(QUERY, documents, ranker=ranker)
    found = {result.index: result.score for result in ranking.results}
    return [found[index] for index in range(len(DOCUMENTS))]


def cosines(model: SentenceTransformer, query: str = "query: ", document: str = "passage: ") -> list[float]:
    vectors = model.encode([query + QUERY, *(document + text for text in DOCUMENTS)])
    similarities: list[float] = model.similarity(vectors[:1], vectors[1:])[0].tolist()
    return similarities


@in_one_loop
@pytest.mark.parametrize(
    ("name", "folder", "reference"),
    [
        *(
            (name, "static", lambda path: cosines(SentenceTransformer(path, device="cpu"), "", ""))
            for name in ("static", "table, onnx", "table, openvino")
        ),
        ("dual", "dual", lambda path: cosines(SentenceTransformer(path, device="cpu"))),
        (
            "other prompts",
            "dual",
            lambda path: cosines(SentenceTransformer(path, device="cpu"), "hello ", ""),
        ),
        *(
            (name, "dual", lambda path: cosines(SentenceTransformer(path, device="cpu", truncate_dim=8)))
            for name in ("truncated", "cut, onnx", "cut, openvino")
        ),
        *(
            (
                name,
                "pair",
                lambda path: CrossEncoder(path, device="cpu", activation_fn=nn.Identity()).predict(
                    [(QUERY, text) for text in DOCUMENTS]
                ),
            )
            for name in ("pair", "asked, onnx", "asked, openvino")
        ),
    ],
)
async def test_served_scores_are_sentence_transformers(
    server: Replica,
    folders: Mapping[str, Path],
    name: str,
    folder: str,
    reference: Callable[[str], list[float]],
) -> None:
    expected = [float(score) for score in reference(str(folders[folder]))]
    assert max(expected) - min(expected) > 0.05
    assert await answered(server, name) == pytest.approx(expected, rel=0, abs=1e-5)


@pytest.mark.asyncio
async def test_an_option_that_a_ranker_does_not_take_stops_the_start(folders: Mapping[str, Path]) -> None:
    config = ServerConfig(
        rankers={"mine": RankerConfig(str(folders["pair"]), truncate_dim=8)},
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    with pytest.raises(ConfigError, match=r"rankers.mine.*truncate_dim is 8; only a bi-encoder takes one"):
        async with Replica(config):
            pass
