"""A folder of a kind that is not served is refused in a line, with the words of docs/reference/models.md."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from farrank_rankers import not_served
from farrank_rankers.errors import SourceError
from farrank_rankers.files.open import open_ranker
from farrank_rankers.not_served import KINDS, NotServed
from support.documentation import ROOT
from support.published_exports import save_biencoder, save_cross_encoder, write_onnx
from support.tiny_tokenizers import save_tokenizer, wordpiece

PAGE = (ROOT / "docs/reference/models.md").read_text(encoding="utf-8").partition("## Not served\n")[2]
TRANSFORMER, POOLING = "sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"
# Characters of a message after the folder's name: a path in the hub's cache has up to 120.
LONGEST = 180


def test_the_table_has_every_kind_in_its_own_words() -> None:
    rows = re.findall(r"^\| (an? .+?) \| (.+?) \| (.+?) \|$", PAGE, re.M)
    assert rows == [(each.kind, each.reason, each.instead) for each in KINDS]
    assert {kind for _, kind in FOLDERS.values()} == set(KINDS)


def configured(*modules: str, **values: Any) -> Callable[[Path], None]:
    """Write a config.json and a modules.json, and none of the other files."""

    def write(folder: Path) -> None:
        if values:
            (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | values))
        if modules:
            listed = [
                {"type": name, "path": "" if place == 0 else str(place)} for place, name in enumerate(modules)
            ]
            (folder / "modules.json").write_text(json.dumps(listed))

    return write


def of_class(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        configured(TRANSFORMER, architectures=["BertModel"])(folder)
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": name}))

    return write


def adapter(**settings: Any) -> Callable[[Path], None]:
    """Write the files of peft that are read first."""

    def write(folder: Path) -> None:
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | settings))
        (folder / "adapter_model.safetensors").touch()

    return write


def several_adapters(folder: Path) -> None:
    for name in ("one", "other"):
        (folder / name).mkdir()
        adapter()(folder / name)


def gguf(folder: Path) -> None:
    (folder / "model-Q8_0.gguf").write_bytes(b"GGUF")


def gguf_beside_a_configuration(folder: Path) -> None:
    save_cross_encoder(folder)
    (folder / "model.safetensors").rename(folder / "model.gguf")


def unknown(folder: Path) -> None:
    save_cross_encoder(folder)
    edited(folder, model_type="no-such-model")


def with_its_own_code(folder: Path) -> None:
    """As jinaai/jina-reranker-v2-base-multilingual: a known type, and tensors of another form."""
    save_cross_encoder(folder)
    edited(
        folder,
        auto_map={
            "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModelForSequenceClassification": "modeling_xlm_roberta.XLMRobertaForSequenceClassification",
        },
    )


def backbone_with_its_own_code(folder: Path) -> None:
    """As the bi-encoders whose code lets Qwen2's tokens see later ones."""
    save_biencoder(folder)
    edited(folder, auto_map={"AutoModel": "modeling_qwen.Qwen2Model"})


def graphs_alone(folder: Path) -> None:
    write_onnx(save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    (folder / "model.safetensors").unlink()


def pickled(folder: Path) -> None:
    save_cross_encoder(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def untrained(folder: Path) -> None:
    save_cross_encoder(folder)
    edited(folder, architectures=["BertForMaskedLM"])


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


T5 = {"model_type": "t5", "is_encoder_decoder": True}
FOLDERS: dict[str, tuple[Callable[[Path], None], NotServed]] = {
    "DoRA": (adapter(use_dora=True), not_served.ADAPTER),
    "LoHa": (adapter(peft_type="LOHA"), not_served.ADAPTER),
    "several adapters": (several_adapters, not_served.ADAPTERS),
    "no base": (adapter(base_model_name_or_path="/home/someone/where/it/was/trained"), not_served.BASELESS),
    "jina-reranker-v3": (
        configured(
            model_type="qwen3",
            architectures=["JinaForRanking"],
            auto_map={"AutoModel": "modeling.JinaForRanking"},
        ),
        not_served.LISTWISE,
    ),
    "jina-reranker-m0": (
        configured(model_type="qwen2_vl", architectures=["JinaVLForRanking"]),
        not_served.IMAGES,
    ),
    "Qwen3-VL-Reranker": (
        configured(
            model_type="qwen3_vl", architectures=["Qwen3VLForConditionalGeneration"], vision_config={}
        ),
        not_served.IMAGES,
    ),
    "Qwen3-VL-Reranker, of sentence-transformers": (
        configured(
            "sentence_transformers.base.modules.transformer.Transformer",
            "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
            model_type="qwen3_vl",
            vision_config={},
        ),
        not_served.IMAGES,
    ),
    "MultiVectorEncoder with pooled tokens": (
        configured(
            TRANSFORMER,
            "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling",
            architectures=["BertModel"],
        ),
        not_served.TOKEN_POOLING,
    ),
    "monoT5": (configured(architectures=["T5ForConditionalGeneration"], **T5), not_served.ENCODER_DECODER),
    "sentence-t5": (
        configured(TRANSFORMER, POOLING, architectures=["T5EncoderModel"], **T5),
        not_served.ENCODER_DECODER,
    ),
    "SPLADE": (
        configured(
            "sentence_transformers.sparse_encoder.models.MLMTransformer",
            "sentence_transformers.sparse_encoder.models.SpladePooling",
            architectures=["BertForMaskedLM"],
        ),
        not_served.SPARSE,
    ),
    "SparseEncoder": (of_class("SparseEncoder"), not_served.SPARSE),
    "llama.cpp": (gguf, not_served.GGUF),
    "llama.cpp with config.json": (gguf_beside_a_configuration, not_served.GGUF),
    "jina-reranker-v2": (with_its_own_code, not_served.OWN_CODE),
    "gte-Qwen2": (backbone_with_its_own_code, not_served.OWN_CODE),
    "unknown": (unknown, not_served.UNKNOWN),
    "onnx alone": (graphs_alone, not_served.GRAPHS_ALONE),
    "pytorch_model.bin": (pickled, not_served.PICKLED),
    "bert-base": (untrained, not_served.UNTRAINED),
}


def check_refusal(folder: Path, kind: NotServed) -> None:
    with pytest.raises(SourceError) as refused:
        open_ranker(folder)
    message = str(refused.value)
    assert "\n" not in message
    assert kind.kind in message
    assert message.endswith(f": {kind.reason}; {kind.instead}")
    assert message.startswith(str(folder))
    assert len(message) - len(str(folder)) <= LONGEST


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_refused_by_the_name_of_its_kind(tmp_path: Path, name: str) -> None:
    write, kind = FOLDERS[name]
    write(tmp_path)
    check_refusal(tmp_path, kind)


@pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)
@pytest.mark.parametrize(("name", "kind"), [("SparseEncoder", not_served.SPARSE)])
def test_folders_that_sentence_transformers_itself_writes(tmp_path: Path, name: str, kind: NotServed) -> None:
    import sentence_transformers
    from transformers import AutoConfig, AutoModelForMaskedLM

    base = tmp_path / "base"
    base.mkdir()
    tokenizer = save_tokenizer(wordpiece(), base, "bert")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), **sizes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(base)
    getattr(sentence_transformers, name)(str(base), device="cpu").save_pretrained(
        str(tmp_path / "saved"), create_model_card=False
    )
    check_refusal(tmp_path / "saved", kind)


def test_a_gguf_file_is_no_folder(tmp_path: Path) -> None:
    gguf(tmp_path)
    check_refusal(tmp_path / "model-Q8_0.gguf", not_served.GGUF)


def test_long_names_are_cut(tmp_path: Path) -> None:
    """A damaged file may have megabytes, or lines, where a name belongs."""
    save_cross_encoder(tmp_path)
    for name in ("x" * 10_000, "a\n" * 1_000):
        edited(tmp_path, model_type=name)
        check_refusal(tmp_path, not_served.UNKNOWN)


def test_an_artifact_is_what_its_spec_says(tmp_path: Path, cross_encoder: Path) -> None:
    """The kinds are those of published folders: a config.json in an artifact may have any keys."""
    from farrank_rankers.files.save import save_ranker

    save_ranker(open_ranker(cross_encoder), tmp_path)
    edited(tmp_path, auto_map={"AutoModel": "modeling.Other"})
    assert open_ranker(tmp_path).spec.family == "cross-encoder"
    shutil.rmtree(tmp_path)
