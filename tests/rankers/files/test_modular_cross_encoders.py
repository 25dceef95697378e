"""Cross-encoders of several modules, like Ettin's, have sentence-transformers' scores, or are refused."""

import json
import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from torch import nn

from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.family import CrossEncoderOptions
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support import runtime_scores as of_exports
from support.exported_rankers import scores_of_fp32_exports
from support.packed_backbones import stream_of

# Earlier releases have no such cross-encoders.
pytestmark = pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)

MakeBackbone = Callable[..., Path]
EditJson = Callable[..., None]

QUERY = "how does a neural search engine rank a long document"
DOCUMENTS = ["windows slide over the text", "hello world, café straße", "parse command line arguments", ""]
EXACT: dict[str, Any] = {"rel": 0, "abs": 1e-5}


def save(backbone: Path, folder: Path, pooling: str = "cls", labels: int = 1, **given: Any) -> Path:
    """Save Ettin's chain of modules around a backbone of 32 dimensions, with random weights."""
    from sentence_transformers.cross_encoder.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    with torch.random.fork_rng():
        torch.manual_seed(5)
        norm = LayerNorm(24)
        nn.init.normal_(norm.norm.weight, 1.0, 0.2)
        nn.init.normal_(norm.norm.bias, 0.0, 0.2)
        modules = [
            Transformer(str(backbone)),
            Pooling(32, pooling_mode=pooling),
            Dense(32, 24, bias=False, activation_function=nn.GELU()),
            norm,
            Dense(24, labels, activation_function=nn.Identity(), module_output_name="scores"),
        ]
    model = CrossEncoder(modules=modules, device="cpu", **given)
    model.save_pretrained(str(folder))
    assert (
        json.loads((folder / "config_sentence_transformers.json").read_text())["model_type"] == "CrossEncoder"
    )
    return folder


def published(folder: Path, documents: Sequence[str] = DOCUMENTS, query: str = QUERY) -> list[float]:
    model = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity())
    logits = torch.from_numpy(model.predict([(query, text) for text in documents]))
    found: list[float] = (logits if logits.dim() == 1 else logits[:, 1] - logits[:, 0]).tolist()
    return found


def scores(folder: Path, documents: Sequence[str] = DOCUMENTS) -> list[float]:
    ranker = open_ranker(folder, family="firstp", window=60)
    return [each.score for each in ranker.score(QUERY, documents)]


@pytest.fixture(scope="module")
def ettin(make_backbone: MakeBackbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_backbone("modernbert"), tmp_path_factory.mktemp("ettin"))


@pytest.fixture
def changed(ettin: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return shutil.copytree(ettin, tmp_path / "changed")


@pytest.mark.parametrize(
    ("architecture", "pooling", "labels"),
    [("modernbert", "cls", 1), ("modernbert", "mean", 2), ("bert", "mean", 1), ("bert", "cls", 2)],
)
def test_scores_are_those_of_cross_encoder(
    make_backbone: MakeBackbone, tmp_path: Path, architecture: str, pooling: str, labels: int
) -> None:
    folder = save(make_backbone(architecture), tmp_path, pooling, labels)
    expected = published(folder)
    assert torch.tensor(expected).std() > 0.05
    assert scores(folder) == pytest.approx(expected, **EXACT)
    ranker = open_ranker(folder, family="firstp", window=60)
    reader = ranker.reader
    asked = reader.read_query(QUERY)
    inputs = [reader.chunk_input(asked, reader.split(reader.read_document(text))[0]) for text in DOCUMENTS]
    with torch.inference_mode():
        rows = PackedEncoder(ranker.encoder, plain_attention)(stream_of(inputs))
    assert [float(row.vectors[0]) for row in rows] == pytest.approx(expected, **EXACT)


def test_the_head_is_saved_with_the_ranker(ettin: Path, tmp_path: Path) -> None:
    ranker = open_ranker(ettin, family="firstp", window=60)
    assert ranker.spec.family == "cross-encoder"
    save_ranker(ranker, tmp_path / "artifact")
    again = open_ranker(tmp_path / "artifact")
    assert again.version == ranker.version
    assert again.spec.options_as(CrossEncoderOptions).head == ranker.spec.options_as(CrossEncoderOptions).head
    assert [each.score for each in again.score(QUERY, DOCUMENTS)] == scores(ettin)


def test_an_export_has_the_librarys_scores(ettin: Path, tmp_path: Path) -> None:
    expected = published(ettin, of_exports.TEXTS, of_exports.QUERY)
    ranker = open_ranker(ettin, family="longp", max_document_tokens=900)
    for found in scores_of_fp32_exports(ranker, tmp_path / "artifact").values():
        assert found == pytest.approx(expected, **EXACT)


def test_the_best_window_counts(ettin: Path) -> None:
    ranker = open_ranker(ettin, window=12, stride=8)
    (scored,) = ranker.score(QUERY, [" ".join(DOCUMENTS * 5)])
    assert len(scored.chunks) > 3
    assert scored.score == max(scored.chunk_scores)


def test_a_default_prompt_precedes_the_query(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    folder = save(
        make_backbone("modernbert"), tmp_path, prompts={"search": "long text: "}, default_prompt_name="search"
    )
    expected = published(folder)
    assert scores(folder) == pytest.approx(expected, **EXACT)
    assert open_reader(folder).spec.options_as(CrossEncoderOptions).query_prefix == "long text: "


@pytest.mark.parametrize(
    ("place", "values", "said"),
    [
        (
            "2_Dense",
            {"activation_function": "torch.nn.modules.activation.PReLU"},
            "PReLU'; it must be",
        ),
        ("2_Dense", {"activation_function": "modeling.Own"}, "activation_function is 'modeling.Own'"),
        ("2_Dense", {"in_features": 16}, "in_features is 16; only 32 is served there"),
        ("2_Dense", {"module_output_name": "other"}, "module_output_name is 'other'"),
        ("2_Dense", {"use_residual": 1}, "use_residual is 1; it must be true or false"),
        ("2_Dense", {"out_features": "a"}, "out_features is 'a'; it must be a whole number"),
        ("3_LayerNorm", {"dimension": 32}, "dimension is 32; only 24 fits there"),
        ("4_Dense", {"module_output_name": "sentence_embedding"}, "only 'scores' is served there"),
        ("4_Dense", {"out_features": 3}, "head.layers end in 3 labels; they must be 1"),
        ("1_Pooling", {"pooling_mode": "weightedmean"}, "pooling is 'weightedmean'"),
    ],
)
def test_other_modules_are_refused(
    changed: Path, edit_json: EditJson, place: str, values: dict[str, Any], said: str
) -> None:
    edit_json(changed / place / "config.json", **values)
    with pytest.raises(SourceError) as refused:
        open_reader(changed)
    assert said in str(refused.value)
    assert str(changed) in str(refused.value)


@pytest.mark.parametrize("kept", [(0,), (0, 1), (0, 1, 3), (0, 2), (0, 1, 1, 2)])
def test_other_chains_are_refused_by_name(changed: Path, kept: tuple[int, ...]) -> None:
    path = changed / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([modules[place] for place in kept]))
    with pytest.raises(
        SourceError, match=r"is a cross-encoder of the modules Transformer.*; only Transformer"
    ) as no:
        open_reader(changed)
    assert len(str(no.value)) - len(str(changed)) <= 300


def test_a_missing_weight_is_named(changed: Path) -> None:
    (changed / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"2_Dense/model.safetensors is missing"):
        open_ranker(changed)


def test_a_bi_encoders_options_are_refused(ettin: Path) -> None:
    with pytest.raises(SpecError, match="truncate_dim is 8; only a bi-encoder takes one"):
        open_reader(ettin, truncate_dim=8)
