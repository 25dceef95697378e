"""Folders that sentence-transformers publishes have its scores, to 1e-5 in fp32."""

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer
from torch import nn

from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from support.sentence_modules import Pooling, StaticEmbedding, Transformer
from support.tiny_tokenizers import byte_level, metaspace, wordpiece

MakeModel = Callable[..., Path]
EditJson = Callable[..., None]
# Release 6 added cross-encoders' prompts, activations in a separate file, and tables of model2vec.
needs_release_6 = pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6,
    reason="sentence-transformers before 6 neither writes nor reads it",
)

QUERY = "how does a neural search engine rank a long document"
DOCUMENTS = ["windows slide over the text", "hello world, café straße", "parse command line arguments"]
PAIRS = [(QUERY, text) for text in DOCUMENTS]
EXACT: dict[str, Any] = {"rel": 0, "abs": 1e-5}

MODELS: dict[str, dict[str, Any]] = {
    "bert": {},  # as cross-encoder/ms-marco-MiniLM-L-6-v2 and all of BERT's sizes
    "electra": {"embedding_size": 16},  # as cross-encoder/ms-marco-electra-base
    "xlm-roberta": {"type_vocab_size": 1},  # as BAAI/bge-reranker-v2-m3, jina-reranker-v2's base
    "deberta-v2": {  # as mixedbread-ai/mxbai-rerank-base-v1: DeBERTa-v3, with fewer buckets
        "relative_attention": True,
        "position_buckets": 16,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "pooler_hidden_size": 32,
    },
}


def scores(source: Path, documents: list[str] = DOCUMENTS, **overrides: Any) -> list[float]:
    ranker = open_ranker(source, family="firstp", window=60, **overrides)
    return [item.score for item in ranker.score(QUERY, documents)]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # DeBERTa, when imported
@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("model_type", MODELS)
def test_cross_encoders_saved_by_sentence_transformers(
    make_model: MakeModel, tmp_path: Path, model_type: str, labels: int
) -> None:
    folder = make_model(model_type, labels=labels, **MODELS[model_type])
    reference = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity())
    reference.save_pretrained(str(tmp_path))
    logits = torch.from_numpy(reference.predict(PAIRS))
    expected = logits if labels == 1 else logits[:, 1] - logits[:, 0]
    assert expected.std() > 0.01
    assert scores(tmp_path) == pytest.approx(expected.tolist(), **EXACT)


@pytest.mark.parametrize(
    ("model_type", "positions", "words"),
    [("bert", 512, 40), ("modernbert", 8192, 90), ("xlm-roberta", 4098, 90)],
)
def test_long_queries_are_read_whole(
    make_model: MakeModel, model_type: str, positions: int, words: int
) -> None:
    folder = make_model(model_type, positions=positions)
    query = " ".join((QUERY.split() * 12)[:words])
    ranker = open_ranker(folder)
    asked = ranker.reader.read_query(query)
    assert asked.tokens_cut == 0
    assert len(asked) > 50
    reference = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity())
    expected = reference.predict([(query, text) for text in DOCUMENTS]).tolist()
    found = [item.score for item in ranker.score(query, DOCUMENTS)]
    assert found == pytest.approx(expected, **EXACT)


@pytest.fixture
def published(cross_encoder: Path, tmp_path: Path) -> Path:
    """A copy of a cross-encoder's folder, to be changed."""
    shutil.copytree(cross_encoder, tmp_path / "published")
    return tmp_path / "published"


# The places where releases of sentence-transformers store a cross-encoder's activation.
def keep_in_own_file(folder: Path, edit_json: EditJson, name: Any) -> None:
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder))
    edit_json(folder / "config_sentence_transformers.json", activation_fn=name)


def keep_in_config(folder: Path, edit_json: EditJson, name: Any) -> None:
    edit_json(folder / "config.json", sentence_transformers={"activation_fn": name, "version": "4.1.0"})


def keep_as_before_4(folder: Path, edit_json: EditJson, name: Any) -> None:
    edit_json(folder / "config.json", sbert_ce_default_activation_function=name)


KEPT = {
    "activation_fn": keep_in_own_file,
    "sentence_transformers.activation_fn": keep_in_config,
    "sbert_ce_default_activation_function": keep_as_before_4,
}
PLACES = [pytest.param(name, marks=needs_release_6 if name == "activation_fn" else ()) for name in KEPT]


@pytest.mark.parametrize("kept", PLACES)
@pytest.mark.parametrize(
    ("name", "inverse"),
    [("torch.nn.modules.activation.Sigmoid", torch.logit), ("torch.nn.modules.linear.Identity", torch.clone)],
)
def test_scores_are_logits_before_the_activation(
    published: Path,
    edit_json: EditJson,
    kept: str,
    name: str,
    inverse: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    KEPT[kept](published, edit_json, name)
    activated = torch.from_numpy(CrossEncoder(str(published), device="cpu").predict(PAIRS)).double()
    assert scores(published) == pytest.approx(inverse(activated).tolist(), **EXACT)


@pytest.mark.parametrize("kept", PLACES)
def test_an_activation_that_turns_the_order_over_is_refused(
    published: Path, edit_json: EditJson, kept: str
) -> None:
    KEPT[kept](published, edit_json, "torch.nn.modules.activation.GELU")
    with pytest.raises(
        SourceError, match=rf"{kept} is 'torch.nn.modules.activation.GELU'.*increasing function"
    ):
        open_reader(published)
    KEPT[kept](published, edit_json, 3)
    with pytest.raises(SourceError, match=rf"{kept} is 3; it must be a string"):
        open_reader(published)


def test_an_activation_of_a_folders_own_code_is_passed_over(published: Path, edit_json: EditJson) -> None:
    expected = scores(published)
    keep_in_config(published, edit_json, "modeling.Own")
    assert scores(published) == expected


@needs_release_6
@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_a_cross_encoders_default_prompt_stands_before_the_query(
    make_model: MakeModel, tmp_path: Path, model_type: str
) -> None:
    reference = CrossEncoder(
        str(make_model(model_type)),
        device="cpu",
        activation_fn=nn.Identity(),
        prompts={"search": "long text over a query: ", "other": "world "},
        default_prompt_name="search",
    )
    reference.save_pretrained(str(tmp_path / "saved"))
    expected = reference.predict(PAIRS).tolist()
    assert scores(tmp_path / "saved") == pytest.approx(expected, **EXACT)
    other = reference.predict(PAIRS, prompt_name="other").tolist()
    assert other != pytest.approx(expected, abs=1e-3)
    assert scores(tmp_path / "saved", query_prefix="world ") == pytest.approx(other, **EXACT)
    ranker = open_ranker(tmp_path / "saved", window=20)
    assert ranker.version != open_ranker(tmp_path / "saved", window=20, query_prefix="").version
    save_ranker(ranker, tmp_path / "artifact")
    assert open_ranker(tmp_path / "artifact").version == ranker.version


def test_a_prompts_tokens_take_positions(published: Path) -> None:
    """Of 128 positions 32 are the query's, 3 are special tokens and 3 the prompt's."""
    whole = open_reader(published, family="longp", query_prefix="hello world hello ")
    assert whole.spec.chunking.window == 128 - 32 - 3 - 3
    assert whole.max_input_tokens == 128
    with pytest.raises(SpecError, match=r"input of 129 tokens .* would exceed the 128 positions"):
        open_reader(
            published, family="longp", max_document_tokens=91, window=91, query_prefix="hello world hello "
        )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"default_prompt_name": "query"}, "default_prompt_name is 'query'; prompts has none"),
        ({"prompts": {"a": ""}, "default_prompt_name": "b"}, "default_prompt_name is 'b'; prompts has a"),
        ({"prompts": {"a": 3}}, "prompts.a is 3; it must be a string"),
        ({"prompts": ["a"]}, r"prompts is \['a'\]; it must be an object"),
    ],
)
def test_damaged_prompts(published: Path, values: dict[str, Any], message: str) -> None:
    (published / "config_sentence_transformers.json").write_text(json.dumps(values))
    with pytest.raises(SourceError, match=f"config_sentence_transformers.json: {message}"):
        open_reader(published)


@pytest.mark.parametrize("overrides", [{"document_prefix": "a"}, {"truncate_dim": 8}, {"template": "a"}])
def test_a_cross_encoder_takes_no_more(published: Path, overrides: dict[str, Any]) -> None:
    (name,) = overrides
    with pytest.raises(SpecError, match=f"{name} is .*; only a .* takes one, and this is a cross-encoder"):
        open_reader(published, **overrides)


def test_a_cross_encoder_whose_prompt_has_no_place_takes_no_instruction(published: Path) -> None:
    with pytest.raises(
        SpecError, match="instruction is 'a'; this cross-encoder takes none: its query_prefix"
    ):
        open_reader(published, instruction="a")


@pytest.fixture(scope="module")
def dual(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a bi-encoder with prompts, like e5, bge and gte."""

    def make(model_type: str, prompts: dict[str, str], similarity: Any = "cosine") -> Path:
        body = Transformer(str(make_model(model_type)))
        model = SentenceTransformer(
            modules=[body, Pooling(32, pooling_mode="mean")],
            device="cpu",
            prompts=prompts,
            similarity_fn_name=similarity,
        )
        folder = tmp_path_factory.mktemp("dual")
        model.save(str(folder), create_model_card=False)
        return folder

    return make


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize(
    "prompts",
    [
        {"query": "query: ", "document": "passage: "},  # e5
        {"query": "Represent this sentence for searching relevant passages: "},  # bge, mxbai, gte and similar
    ],
)
def test_prompts_of_bi_encoders(dual: Callable[..., Path], model_type: str, prompts: dict[str, str]) -> None:
    folder = dual(model_type, prompts)
    reference = SentenceTransformer(str(folder), device="cpu")
    query, documents = reference.encode_query([QUERY]), reference.encode_document(DOCUMENTS)
    assert scores(folder) == pytest.approx(reference.similarity(query, documents)[0].tolist(), **EXACT)
    bare = reference.similarity(reference.encode([QUERY]), reference.encode(DOCUMENTS))[0].tolist()
    assert bare != pytest.approx(scores(folder), abs=1e-3)
    assert scores(folder, query_prefix="", document_prefix="") == pytest.approx(bare, **EXACT)


@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_other_names_of_documents_prompts(dual: Callable[..., Path], name: str) -> None:
    folder = dual("bert", {"query": "query: ", name: "text: "})
    assert open_reader(folder).spec.options.document_prefix == "text: "  # type: ignore[attr-defined]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_matryoshka_vectors_are_cut(dual: Callable[..., Path], similarity: str) -> None:
    folder = dual("bert", {}, similarity)
    reference = SentenceTransformer(str(folder), device="cpu", truncate_dim=8)
    query, documents = reference.encode([QUERY]), reference.encode(DOCUMENTS)
    assert documents.shape == (3, 8)
    expected = reference.similarity(query, documents)[0].tolist()
    found = scores(folder, truncate_dim=8)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found != pytest.approx(scores(folder), abs=1e-3)
    assert open_ranker(folder, truncate_dim=8).version != open_ranker(folder).version
    with pytest.raises(SpecError, match="truncate_dim is 33; it must be at most the 32 dimensions"):
        open_ranker(folder, truncate_dim=33)
    with pytest.raises(SpecError, match="truncate_dim is 0; it must be at least 1"):
        open_reader(folder, truncate_dim=0)


def test_unused_options_are_not_written(dual: Callable[..., Path], published: Path) -> None:
    """Versions are hashes of the spec's text, so rankers without the newer options keep theirs."""
    for folder, name in ((dual("bert", {}), "truncate_dim"), (published, "query_prefix")):
        assert name not in json.loads(open_reader(folder).spec.to_json())["options"]


def save_static(folder: Path, tokenizer: Tokenizer, normalized: bool = True) -> SentenceTransformer:
    module = StaticEmbedding(tokenizer, embedding_dim=24)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        nn.init.normal_(module.embedding.weight)
    model = SentenceTransformer(
        modules=[module], device="cpu", similarity_fn_name="cosine" if normalized else "dot"
    )
    model.save(str(folder), create_model_card=False)
    return model


@pytest.mark.parametrize("tokenizer", [wordpiece, byte_level, metaspace])
@pytest.mark.parametrize("normalized", [True, False])
def test_static_embeddings(tmp_path: Path, tokenizer: Callable[[], Tokenizer], normalized: bool) -> None:
    reference = save_static(tmp_path / "saved", tokenizer(), normalized)
    texts = [*DOCUMENTS, ""]
    query, documents = reference.encode([QUERY]), reference.encode(texts)
    expected = reference.similarity(query, documents)[0].tolist()
    found = scores(tmp_path / "saved", texts)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found[-1] == 0
    cut = reference.similarity(query[:, :8], documents[:, :8])[0].tolist()
    assert scores(tmp_path / "saved", texts, truncate_dim=8) == pytest.approx(cut, rel=1e-5, abs=1e-5)
    ranker = open_ranker(tmp_path / "saved")
    save_ranker(ranker, tmp_path / "artifact")
    assert open_ranker(tmp_path / "artifact").version == ranker.version
    assert scores(tmp_path / "artifact", texts) == found


def test_static_tokenizers_are_read_without_a_class(tmp_path: Path) -> None:
    """Only tokenizer.json is there, which keeps the case of letters; BERT's class would lower them."""
    tokenizer = wordpiece()
    kept = json.loads(tokenizer.to_str())
    kept["normalizer"]["lowercase"] = False
    save_static(tmp_path, Tokenizer.from_str(json.dumps(kept)))
    reader = open_reader(tmp_path)
    assert reader.tokenizer.ids("Hello hello").tolist() == [
        tokenizer.token_to_id("[UNK]"),
        tokenizer.token_to_id("hello"),
    ]


@needs_release_6
def test_tables_of_model2vec(tmp_path: Path) -> None:
    """Fewer vectors than tokens, and a weight for each token."""
    save_static(tmp_path, wordpiece())
    words = len(load_file(tmp_path / "model.safetensors")["embedding.weight"])
    path = tmp_path / "model.safetensors"
    tensors = {
        "embeddings": torch.randn(20, 24),
        "mapping": torch.arange(words) % 20,
        "weights": torch.rand(words) + 0.5,
    }
    save_file(tensors, path)
    reference = SentenceTransformer(str(tmp_path), device="cpu")
    expected = reference.similarity(reference.encode([QUERY]), reference.encode(DOCUMENTS))[0].tolist()
    assert scores(tmp_path) == pytest.approx(expected, **EXACT)
    for name, tensor in (("mapping", torch.full((words,), 20)), ("weights", torch.rand(3))):
        save_file(tensors | {name: tensor}, path)
        with pytest.raises(WeightsError, match=f"model.safetensors: tensor {name} "):
            open_ranker(tmp_path)
    save_file({"other": torch.rand(3)}, path)
    with pytest.raises(SourceError, match=r"model.safetensors is not a table of static embeddings"):
        open_reader(tmp_path)
    path.unlink()
    with pytest.raises(SourceError, match=r"model.safetensors is missing"):
        open_reader(tmp_path)


def test_static_embeddings_read_no_pairs(tmp_path: Path) -> None:
    save_static(tmp_path, wordpiece())
    with pytest.raises(SpecError, match="family must be biencoder: static embeddings read no query"):
        new_ranker("maxp", tmp_path)
