"""Bi-encoders that pool the last token, or with linear layers behind, have sentence-transformers' scores."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from torch import nn

from farrank_rankers.backbones.published_config import SINCE_5
from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from support.embedding_models import INSTRUCTION, SAVERS, save_gemma, save_qwen3
from support.sentence_modules import Dense

QUERY = "how does a neural search engine rank a long document?"
DOCUMENTS = ["windows slide over the text", "hello world, café straße", "parse"]
if SINCE_5:  # sentence-transformers 5.1 takes the space from the end of a prompt before an empty document
    DOCUMENTS.append("")
LONG = (
    "the long document ranks chunks of passages by a query and its tokens while windows slide over text " * 4
)
EXACT: dict[str, Any] = {"rel": 0, "abs": 1e-5}


def expected(model: SentenceTransformer, texts: list[str], dimensions: int | None = None) -> list[float]:
    query, documents = model.encode_query([QUERY]), model.encode_document(texts)
    found: list[float] = model.similarity(query[:, :dimensions], documents[:, :dimensions])[0].tolist()
    return found


def scores(source: Path, texts: list[str] = DOCUMENTS, **overrides: Any) -> list[float]:
    return [each.score for each in open_ranker(source, **overrides).score(QUERY, texts)]


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_the_last_token_is_pooled(tmp_path: Path, padding_side: str) -> None:
    model = save_qwen3(tmp_path, padding_side)
    reference = expected(model, DOCUMENTS)
    assert max(reference) - min(reference) > 0.05
    assert scores(tmp_path / "saved") == pytest.approx(reference, **EXACT)
    assert scores(tmp_path / "saved", query_prefix="") != pytest.approx(reference, abs=1e-3)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_linear_layers_follow_the_mean(tmp_path: Path, padding_side: str) -> None:
    model = save_gemma(tmp_path, padding_side=padding_side)
    reference = expected(model, DOCUMENTS)
    assert max(reference) - min(reference) > 0.05
    assert scores(tmp_path / "saved") == pytest.approx(reference, **EXACT)


def test_later_tokens_are_seen(tmp_path: Path, edit_json: Callable[..., None]) -> None:
    """EmbeddingGemma's attention is not Gemma 3's."""
    save_gemma(tmp_path)
    before = scores(tmp_path / "saved")
    edit_json(tmp_path / "saved" / "config.json", use_bidirectional_attention=False)
    assert scores(tmp_path / "saved") != pytest.approx(before, abs=1e-3)


ACTIVATIONS = [nn.Identity(), nn.Tanh(), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Sigmoid()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda each: type(each).__name__)
def test_activations_and_biases(tmp_path: Path, activation: nn.Module) -> None:
    """Without Normalize, as LaBSE has it; the cosine makes unit length."""
    model = save_gemma(tmp_path, Dense(32, 20, activation_function=activation))
    assert scores(tmp_path / "saved") == pytest.approx(expected(model, DOCUMENTS), **EXACT)


@pytest.mark.parametrize("kind", SAVERS)
def test_chunks_of_a_document(tmp_path: Path, kind: str) -> None:
    """Each chunk has the score of its own tokens, and the best chunk's is the document's."""
    model = SAVERS[kind](tmp_path)
    ranker = open_ranker(tmp_path / "saved", window=20, stride=15)
    (result,) = ranker.score(QUERY, [LONG])
    assert len(result.chunks) > 3
    tokenizer = model.tokenizer
    before = tokenizer("title: none | text:", add_special_tokens=False).input_ids if kind == "dense" else []
    start, end = tokenizer("").input_ids[:-1], tokenizer("").input_ids[-1:]
    vectors = []
    for chunk in result.chunks:
        ids = torch.tensor([[*start, *before, *chunk.ids.tolist(), *end]])
        with torch.no_grad():
            vectors.append(
                model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"]
            )
    reference = model.similarity(model.encode_query([QUERY]), torch.cat(vectors))[0].tolist()
    assert result.chunk_scores == pytest.approx(reference, **EXACT)
    assert result.score == max(result.chunk_scores)


@pytest.mark.parametrize("kind", SAVERS)
def test_vectors_are_cut(tmp_path: Path, kind: str, edit_json: Callable[..., None]) -> None:
    """By an option, or by the folder itself, which the option replaces."""
    folder, model = tmp_path / "saved", SAVERS[kind](tmp_path)
    reference = expected(model, DOCUMENTS, 8)
    assert scores(folder, truncate_dim=8) == pytest.approx(reference, **EXACT)
    edit_json(folder / "config_sentence_transformers.json", truncate_dim=8)
    if SINCE_5:  # sentence-transformers 5.1, beside transformers 4.57, does not read it
        cut = SentenceTransformer(str(folder), device="cpu")
        assert expected(cut, DOCUMENTS) == pytest.approx(reference, **EXACT)
    assert scores(folder) == pytest.approx(reference, **EXACT)
    assert scores(folder, truncate_dim=12) == pytest.approx(expected(model, DOCUMENTS, 12), **EXACT)
    width = 24 if kind == "dense" else 32
    with pytest.raises(SpecError, match=f"truncate_dim is 33; it must be at most the {width} dimensions"):
        open_ranker(folder, truncate_dim=33)
    edit_json(folder / "config_sentence_transformers.json", truncate_dim="8")
    with pytest.raises(SourceError, match="truncate_dim is '8'; it must be a whole number"):
        open_reader(folder)


@pytest.mark.parametrize("kind", SAVERS)
def test_an_artifact_is_the_same_ranker(tmp_path: Path, kind: str) -> None:
    SAVERS[kind](tmp_path)
    ranker = open_ranker(tmp_path / "saved")
    save_ranker(ranker, tmp_path / "artifact")
    opened = open_ranker(tmp_path / "artifact")
    assert (opened.version, opened.spec) == (ranker.version, ranker.spec)
    assert scores(tmp_path / "artifact") == scores(tmp_path / "saved")


def test_a_long_query_keeps_its_first_tokens(tmp_path: Path) -> None:
    """The prompt's tokens are not the query's, and cut tokens are counted."""
    save_qwen3(tmp_path)
    reader = open_reader(tmp_path / "saved", max_query_tokens=5)
    whole = open_reader(tmp_path / "saved")
    text = "how does a neural search engine rank"
    read, full = reader.read_query(text), whole.read_query(text)
    assert read.ids.tolist() == full.ids[:5].tolist()
    assert read.tokens_cut == len(full) - 5
    assert text[len(text) - read.characters_cut :] == text[int(full.starts[5]) :]
    assert (int(full.starts[0]), int(full.ends[-1]), full.characters_cut, full.tokens_cut) == (
        0,
        len(text),
        0,
        0,
    )
    joint = whole.tokenizer.tokenizer.encode(INSTRUCTION + text).ids
    assert whole.query_input(full).input_ids.tolist() == joint
    assert reader.query_input(read).tokens <= reader.max_input_tokens


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("use_residual", 1, "use_residual is 1; it must be true or false"),
        ("module_input_name", "token_embeddings", "module_input_name is 'token_embeddings'; only"),
        (
            "activation_function",
            "torch.nn.modules.activation.Softmax",
            "Softmax'; it must be torch's",
        ),
        ("activation_function", "own.Tanh", "'own.Tanh'; it must be torch's Identity"),
        ("out_features", "many", "out_features is 'many'; it must be a whole number"),
        ("out_features", None, "out_features is None; it must be a whole number"),
        ("bias", 3, "bias is 3; it must be true or false"),
    ],
)
def test_other_linear_layers_are_refused(
    tmp_path: Path, edit_json: Callable[..., None], key: str, value: Any, message: str
) -> None:
    save_gemma(tmp_path)
    edit_json(tmp_path / "saved" / "2_Dense" / "config.json", **{key: value})
    with pytest.raises(SourceError, match=f"2_Dense/config.json: .*{message}"):
        open_reader(tmp_path / "saved")


def test_weights_of_linear_layers_must_fit(tmp_path: Path) -> None:
    save_gemma(tmp_path)
    path = tmp_path / "saved" / "3_Dense" / "model.safetensors"
    save_file({"linear.weight": torch.zeros(24, 47)}, path)
    with pytest.raises(
        WeightsError, match=r"head\.1\.linear\.weight has shape \(24, 47\); the model expects \(24, 48\)"
    ):
        open_ranker(tmp_path / "saved")
    save_file({"linear.other": torch.zeros(24, 48)}, path)
    with pytest.raises(WeightsError, match=r"has the tensor head\.1\.linear\.other, which"):
        open_ranker(tmp_path / "saved")
    save_file({}, path)
    with pytest.raises(WeightsError, match=r"no weights for encoder\.head\.1\.linear\.weight"):
        open_ranker(tmp_path / "saved")
    path.rename(path.with_name("pytorch_model.bin"))
    with pytest.raises(WeightsError, match="3_Dense is a model with pickled weights"):
        open_ranker(tmp_path / "saved")


def test_other_modules_are_refused_by_name(tmp_path: Path) -> None:
    save_gemma(tmp_path)
    path = tmp_path / "saved" / "modules.json"
    modules = json.loads(path.read_text())
    for kinds in (["Transformer", "Pooling", "LSTM"], ["Transformer", "Dense", "Pooling"]):
        listed = [each | {"type": f"x.{kind}"} for each, kind in zip(modules, kinds, strict=False)]
        path.write_text(json.dumps(listed))
        with pytest.raises(SourceError, match=f"modules.json lists {', '.join(kinds)}; only Transformer"):
            open_reader(tmp_path / "saved")


def test_a_new_head_on_such_a_folder_reads_its_transformer_alone(tmp_path: Path) -> None:
    save_gemma(tmp_path)
    shutil.rmtree(tmp_path / "saved" / "2_Dense")
    assert new_ranker("maxp", tmp_path / "saved").score(QUERY, DOCUMENTS)
