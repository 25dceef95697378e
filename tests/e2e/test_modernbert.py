"""A Hugging Face folder of a ModernBERT is served as it is: whole, in windows, and exported."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoConfig, AutoModelForSequenceClassification

from farrank_client import AsyncClient, Document, Ranking, RetryPolicy
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.exported_rankers import export_into
from support.sentence_modules import Pooling, Transformer
from support.tiny_tokenizers import byte_pairs, save_tokenizer

QUERY = "which search engine ranks a long document"
TEXT = "windows slide over text and passages of the long document score by a query, hello world. "
DOCUMENTS = [TEXT * count + ending for count, ending in ((0, "café"), (3, "a"), (20, "the"), (60, "search"))]
LONGEST = 1500  # tokens; a local layer sees 8 on each side

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders as published, of a cross-encoder and a bi-encoder, and an artifact with an export."""
    made = tmp_path_factory.mktemp("modernbert")
    folders = {name: made / name for name in ("pair", "dual", "whole")}
    saved = save_tokenizer(byte_pairs(), folders["pair"], "modernbert")
    config = AutoConfig.for_model(
        "modernbert",
        vocab_size=len(saved),
        pad_token_id=saved.pad_token_id,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        local_attention=16,
        initializer_range=0.25,
        classifier_pooling="mean",
        num_labels=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folders["pair"])
    # As in gte-modernbert-base: [CLS], although its config.json says that a classifier would read the mean.
    body = Transformer(str(folders["pair"]), max_seq_length=8192)
    dual = SentenceTransformer(modules=[body, Pooling(32, pooling_mode="cls")], device="cpu")
    dual.save(str(folders["dual"]), create_model_card=False)
    ranker = open_ranker(folders["pair"], family="longp", max_document_tokens=LONGEST)
    save_ranker(ranker, made / "artifact")
    export_into(made, {"whole": made / "artifact"}, ["whole"])
    return folders


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folders: Mapping[str, Path]) -> AsyncIterator[Replica]:
    pair, whole = str(folders["pair"]), str(folders["whole"])
    longp = RankerConfig(pair, family="longp", max_document_tokens=LONGEST)
    config = ServerConfig(
        rankers={
            "windows": RankerConfig(pair, window=40, stride=30),
            "firstp": RankerConfig(pair, family="firstp", window=40),
            "longp": longp,
            "longp, padded": RankerConfig(
                pair, family="longp", max_document_tokens=LONGEST, packing="padded"
            ),
            "onnx": RankerConfig(whole, runtime="onnx", precision="fp32"),
            "openvino": RankerConfig(whole, runtime="openvino", precision="fp32"),
            "dual": RankerConfig(str(folders["dual"]), family="longp", max_document_tokens=LONGEST),
        },
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


async def answered(server: Replica, ranker: str) -> Ranking:
    documents = [Document(str(index), text) for index, text in enumerate(DOCUMENTS)]
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        return await client.rerank(QUERY, documents, ranker=ranker, depth="all", return_chunk_scores=True)


@in_one_loop
@pytest.mark.parametrize("name", ["longp", "longp, padded", "onnx", "openvino"])
async def test_whole_documents_score_as_sentence_transformers_has_it(
    server: Replica, folders: Mapping[str, Path], name: str
) -> None:
    reference = CrossEncoder(str(folders["pair"]), device="cpu", activation_fn=torch.nn.Identity())
    expected = reference.predict([(QUERY, text) for text in DOCUMENTS])
    assert expected.std() > 0.1
    answer = await answered(server, name)
    found = {result.index: result.score for result in answer.results}
    assert [found[index] for index in range(len(DOCUMENTS))] == pytest.approx(expected.tolist(), abs=1e-5)
    assert not any(result.tokens_cut for result in answer.results)


@in_one_loop
@pytest.mark.parametrize(("name", "family"), [("windows", None), ("firstp", "firstp")])
async def test_windows_score_as_passages_do(
    server: Replica, folders: Mapping[str, Path], name: str, family: str | None
) -> None:
    wanted = open_ranker(folders["pair"], family=family, window=40, stride=30 if family is None else None)
    expected = wanted.score(QUERY, DOCUMENTS)
    for result in (await answered(server, name)).results:
        own = expected[result.index]
        assert result.score == pytest.approx(own.score, abs=1e-5)
        assert [each.score for each in result.chunks] == pytest.approx(own.chunk_scores, abs=1e-5)


@in_one_loop
async def test_a_bi_encoder_is_pooled_as_its_modules_say(
    server: Replica, folders: Mapping[str, Path]
) -> None:
    reference = SentenceTransformer(str(folders["dual"]), device="cpu")
    query, documents = reference.encode([QUERY]), reference.encode(DOCUMENTS)
    expected = reference.similarity(query, documents)[0]
    for result in (await answered(server, "dual")).results:
        assert result.score == pytest.approx(float(expected[result.index]), abs=1e-5)


@in_one_loop
async def test_streams_are_read_unless_configured_otherwise(server: Replica) -> None:
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        rankers = {each.name: each for each in (await client.rankers()).rankers}
    assert rankers["longp"].runtime_reason.endswith("packed batches, plain attention")
    assert rankers["longp, padded"].runtime_reason.endswith("padded batches, as configured")
