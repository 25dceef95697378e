"""A LoRA adapter is merged into its base as peft merges it; any other adapter is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from farrank_rankers.errors import SourceError, WeightsError
from farrank_rankers.exports.published_files import find_published
from farrank_rankers.files.adapter import Adapter, merged
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from support.language_models import make_language_model
from support.published_exports import save_biencoder, save_cross_encoder

QUERY = "how does a neural search engine rank a long document"
DOCUMENTS = ["windows slide over the text", "hello world, café straße", "parse command line arguments"]
EXACT: dict[str, Any] = {"rel": 0, "abs": 1e-5}

# peft asks for it.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


def scores(source: Path, **overrides: Any) -> list[float]:
    return [item.score for item in open_ranker(source, **overrides).score(QUERY, DOCUMENTS)]


def adapted(model: Any, folder: Path, **settings: Any) -> Any:
    """Put an adapter with random factors on a model, save it, and return peft's model."""
    usual: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ["query", "value"]}
    config = LoraConfig(**(usual | settings))
    with torch.random.fork_rng():
        torch.manual_seed(11)
        found = get_peft_model(model, config).eval()
        for name, weight in found.named_parameters():
            if "lora_" in name or "modules_to_save" in name:  # B starts as 0
                torch.nn.init.normal_(weight, 0.0, 0.3)
    found.save_pretrained(str(folder))
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    save_cross_encoder(tmp_path / "base")
    return tmp_path / "base"


def classifier(base: Path, labels: int = 1) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=labels, ignore_mismatched_sizes=True
    )


def logits(model: Any, base: Path) -> Tensor:
    tokenizer = AutoTokenizer.from_pretrained(base)
    given = tokenizer([QUERY] * 3, DOCUMENTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        found: Tensor = model(**given).logits
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"layer.0.attention.self.query": 2}, "alpha_pattern": {"self.query": 3}},
        {"target_modules": "all-linear"},
        {"task_type": "SEQ_CLS"},
        {"task_type": "SEQ_CLS", "modules_to_save": ["classifier"]},
    ],
    ids=str,
)
def test_a_cross_encoder_has_the_logits_of_peft(base: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    model = adapted(classifier(base), tmp_path / "adapter", **settings)
    expected = logits(model, base)[:, 0].tolist()
    assert scores(tmp_path / "adapter") == pytest.approx(expected, **EXACT)
    assert scores(base) != pytest.approx(expected, abs=1e-3)
    ranker = open_ranker(tmp_path / "adapter")
    assert ranker.version != open_ranker(base).version
    save_ranker(ranker, tmp_path / "artifact")
    assert open_ranker(tmp_path / "artifact").version == ranker.version


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM"])
def test_a_pretrained_base_gets_the_adapters_head(
    base: Path, tmp_path: Path, edit_json: Callable[..., None], architecture: str
) -> None:
    """With two labels, which only the saved head shows; the base is no ranker itself."""
    AutoModel.from_pretrained(base).save_pretrained(base)
    model = adapted(classifier(base, labels=2), tmp_path / "adapter", task_type="SEQ_CLS")
    edit_json(base / "config.json", architectures=[architecture])
    found = logits(model, base)
    expected = (found[:, 1] - found[:, 0]).tolist()
    assert scores(tmp_path / "adapter") == pytest.approx(expected, **EXACT)
    with pytest.raises(SourceError, match="is a pretrained model"):
        open_reader(base)


def test_a_language_model_that_answers(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    make_language_model(tmp_path / "base", "qwen3")
    language_model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = adapted(
        language_model, tmp_path / "adapter", target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "base" / name, tmp_path / "merged")
    expected = scores(tmp_path / "merged")
    assert scores(tmp_path / "adapter") == pytest.approx(expected, **EXACT)
    assert scores(tmp_path / "base") != pytest.approx(expected, abs=1e-3)


def test_a_bi_encoder_takes_the_modules_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    save_biencoder(tmp_path / "base")
    reference = SentenceTransformer(str(tmp_path / "base"), device="cpu")
    adapted(reference[0].auto_model, tmp_path / "adapter", task_type="FEATURE_EXTRACTION")
    similar = reference.similarity(reference.encode([QUERY]), reference.encode(DOCUMENTS))
    expected = similar[0].tolist()
    assert scores(tmp_path / "adapter") == pytest.approx(expected, **EXACT)
    assert scores(tmp_path / "base") != pytest.approx(expected, abs=1e-3)


def test_an_adapter_that_sentence_transformers_saved(tmp_path: Path) -> None:
    """With modules.json and a tokenizer of its own, and without config.json."""
    (tmp_path / "base").mkdir()
    save_biencoder(tmp_path / "base")
    model = SentenceTransformer(str(tmp_path / "base"), device="cpu", prompts={"query": "long text: "})
    model.add_adapter(LoraConfig(r=4, lora_alpha=6, target_modules=["query"], task_type="FEATURE_EXTRACTION"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, 0.0, 0.3)
    model.save(str(tmp_path / "saved"), create_model_card=False)
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    similar = model.similarity(model.encode_query([QUERY]), model.encode_document(DOCUMENTS))
    assert scores(tmp_path / "saved") == pytest.approx(similar[0].tolist(), **EXACT)


def test_weights_of_conv1d_are_transposed(tmp_path: Path) -> None:
    """As in GPT-2: W + scale * (B A)^T, written out."""
    first, second, weight = torch.randn(2, 3), torch.randn(5, 2), torch.randn(3, 5)
    settings = {"peft_type": "LORA", "base_model_name_or_path": "b", "lora_alpha": 4, "fan_in_fan_out": True}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    given = {"base_model.model.c.lora_A.weight": first, "base_model.model.c.lora_B.weight": second}
    found = merged({"transformer.c.weight": weight}, given, Adapter.read(tmp_path), tmp_path)
    expected = weight + 4 / 2 * (second @ first).T
    torch.testing.assert_close(found, {"transformer.c.weight": expected}, rtol=0, atol=1e-5)


def test_graphs_of_the_base_are_not_the_adapters(base: Path, tmp_path: Path) -> None:
    adapted(classifier(base), tmp_path / "adapter")
    (base / "onnx").mkdir()
    (base / "onnx" / "model.onnx").write_bytes(b"graph")
    assert find_published(ModelFiles.find(locate(base)))
    assert find_published(ModelFiles.find(locate(tmp_path / "adapter"))) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_A": None}, r"the module .*query lacks one of lora_A and lora_B"),
        ({"lora_A": torch.zeros(3, 32)}, r"of .*query are not two factors of a matrix"),
        ({"lora_B": torch.zeros(31, 4)}, r"has shape \(31, 32\); the base's weight has \(32, 32\)"),
    ],
)
def test_damaged_adapters(base: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    adapted(classifier(base), tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    ((factor, tensor),) = change.items()
    name = next(name for name in tensors if f"query.{factor}" in name)
    tensors.pop(name)
    save_file(tensors | ({} if tensor is None else {name: tensor}), path)
    with pytest.raises(WeightsError, match=message):
        open_ranker(tmp_path / "adapter")
    save_file({name.replace("query", "nowhere"): torch.zeros(4, 32)}, path)
    with pytest.raises(WeightsError, match="nowhere is not in the base"):
        open_ranker(tmp_path / "adapter")
    save_file({name.replace(factor, "other"): torch.zeros(4, 32)}, path)
    with pytest.raises(WeightsError, match=r"query.other.weight is of no module of modules_to_save"):
        open_ranker(tmp_path / "adapter")
    save_file({name.replace(factor, "lora_embedding_A"): torch.zeros(4, 32)}, path)
    with pytest.raises(WeightsError, match="is no part of plain LoRA on a linear layer"):
        open_ranker(tmp_path / "adapter")
    path.rename(path.with_name("adapter_model.bin"))
    with pytest.raises(WeightsError, match=r"pickled weights \(adapter_model.bin\)"):
        open_ranker(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("peft_type", "LOHA", "peft_type LOHA"),
        ("use_dora", True, "use_dora"),
        ("bias", "all", "bias"),
        ("lora_bias", True, "lora_bias"),
        ("layer_replication", [[0, 1]], "layer_replication"),
        ("trainable_token_indices", [1], "trainable_token_indices"),
        ("init_lora_weights", "pissa", "init_lora_weights pissa"),
        ("a_key_of_a_later_release", 1, "a_key_of_a_later_release"),
    ],
)
def test_more_than_plain_lora_is_refused(
    base: Path, tmp_path: Path, edit_json: Callable[..., None], key: str, value: Any, found: str
) -> None:
    adapted(classifier(base), tmp_path / "adapter")
    edit_json(tmp_path / "adapter" / "adapter_config.json", **{key: value})
    with pytest.raises(SourceError, match=rf"is an adapter beyond plain LoRA, like DoRA \({found}\)"):
        open_reader(tmp_path / "adapter")


def test_the_base_must_be_a_published_model(
    base: Path, tmp_path: Path, edit_json: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    adapted(classifier(base), tmp_path / "adapter")
    save_ranker(open_ranker(base), tmp_path / "artifact")
    config = tmp_path / "adapter" / "adapter_config.json"
    for named in (
        str(tmp_path / "gone"),
        "no-one/nothing",
        str(tmp_path / "adapter"),
        str(tmp_path / "artifact"),
        None,
    ):
        edit_json(config, base_model_name_or_path=named)
        with pytest.raises(SourceError, match="is an adapter without its base"):
            open_reader(tmp_path / "adapter")
