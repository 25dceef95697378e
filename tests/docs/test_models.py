"""`farrank serve` accepts the lines of docs/reference/models.md, for folders of the models' types."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

from support.documentation import ROOT
from support.tiny_tokenizers import (
    answering,
    byte_pairs,
    ending,
    metaspace,
    save_tokenizer,
    unsplit,
    wordpiece,
)

if TYPE_CHECKING:
    from support.commands import Outcome

LINES = re.findall(
    r"`(farrank serve [^`]+)` \|$", (ROOT / "docs/reference/models.md").read_text(encoding="utf-8"), re.M
)

PAIRS, ANSWERS = "ForSequenceClassification", "ForCausalLM"
PUBLISHED: dict[str, tuple[str, str, Callable[[], Tokenizer]]] = {
    "cross-encoder/ms-marco-MiniLM-L6-v2": ("bert", f"Bert{PAIRS}", wordpiece),
    "cross-encoder/ms-marco-electra-base": ("electra", f"Electra{PAIRS}", wordpiece),
    "BAAI/bge-reranker-v2-m3": ("xlm-roberta", f"XLMRoberta{PAIRS}", metaspace),
    "BAAI/bge-reranker-base": ("xlm-roberta", f"XLMRoberta{PAIRS}", metaspace),
    "mixedbread-ai/mxbai-rerank-base-v1": ("deberta-v2", f"DebertaV2{PAIRS}", wordpiece),
    "Alibaba-NLP/gte-reranker-modernbert-base": ("modernbert", f"ModernBert{PAIRS}", byte_pairs),
    "./Qwen3-Reranker-0.6B-seq-cls": ("qwen3", f"Qwen3{PAIRS}", answering),
    "cross-encoder/ettin-reranker-17m": ("modernbert", "ModernBertModel", byte_pairs),
    "./my-cross-encoder": ("bert", f"Bert{PAIRS}", wordpiece),
    "Qwen/Qwen3-Reranker-0.6B": ("qwen3", f"Qwen3{ANSWERS}", answering),
    "mixedbread-ai/mxbai-rerank-base-v2": ("qwen2", f"Qwen2{ANSWERS}", answering),
    "BAAI/bge-reranker-v2-gemma": ("gemma", f"Gemma{ANSWERS}", unsplit),
    "./my-llama": ("llama", f"Llama{ANSWERS}", answering),
    "./my-e5": ("bert", "BertModel", wordpiece),
    "intfloat/e5-base-v2": ("bert", "BertModel", wordpiece),
    "BAAI/bge-base-en-v1.5": ("bert", "BertModel", wordpiece),
    "Alibaba-NLP/gte-modernbert-base": ("modernbert", "ModernBertModel", byte_pairs),
    "nomic-ai/modernbert-embed-base": ("modernbert", "ModernBertModel", byte_pairs),
    "Qwen/Qwen3-Embedding-0.6B": ("qwen3", "Qwen3Model", lambda: ending(answering(), "", "<|endoftext|>")),
    "google/embeddinggemma-300m": ("gemma3_text", "Gemma3TextModel", unsplit),
    "./my-multi-vector": ("bert", "BertModel", wordpiece),
    "lightonai/GTE-ModernColBERT-v1": ("modernbert", "ModernBertModel", byte_pairs),
    "colbert-ir/colbertv2.0": ("bert", "HF_ColBERT", wordpiece),
    "answerdotai/answerai-colbert-small-v1": ("bert", "HF_ColBERT", wordpiece),
    "minishlab/potion-base-8M": ("", "", wordpiece),
}

# By the names of multi-vector models' folders: their modules.
PYLATES_DENSE = "pylate.models.Dense.Dense"
MULTI_VECTOR = {
    "my-multi-vector": ["Transformer", "Dense", "MultiVectorMask", "Normalize"],
    "GTE-ModernColBERT-v1": ["Transformer", PYLATES_DENSE],
    "colbertv2.0": [],
    "answerai-colbert-small-v1": ["Transformer", PYLATES_DENSE],
}


def publish(folder: Path, model_type: str, architecture: str, tokenizer: Tokenizer) -> None:
    """Write a folder of that type without its weights, which a dry run does not read."""

    def write(name: str, value: Any) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))

    save_tokenizer(tokenizer, folder, "modernbert" if model_type == "modernbert" else None)
    from safetensors.torch import save_file
    from torch import zeros

    if not model_type:
        write("modules.json", [{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}])
        save_file({"embedding.weight": zeros(tokenizer.get_vocab_size(), 4)}, folder / "model.safetensors")
        return
    config = {"model_type": model_type, "architectures": [architecture], "num_labels": 1, "pad_token_id": 0}
    write("config.json", config | {"max_position_embeddings": 512 if "bert" in model_type else 8192})
    settings: dict[str, Any] = {"prompts": {"query": "query: "}, "default_prompt_name": None}
    if folder.name.endswith("seq-cls"):
        turns = "{% for each in messages %}{{ each.role }}: {{ each.content }}<|im_end|>{% endfor %}"
        (folder / "chat_template.jinja").write_text(turns)
    if folder.name in MULTI_VECTOR:
        listed = MULTI_VECTOR[folder.name]
        if listed:
            modules = [{"path": "" if kind == "Transformer" else kind, "type": kind} for kind in listed]
            write("modules.json", modules)
        write("config.json", config | {"max_position_embeddings": 512, "hidden_size": 8})
        linear = "torch.nn.modules.linear.Identity"
        dense = {"in_features": 8, "out_features": 4, "activation_function": linear}
        write(f"{PYLATES_DENSE}/config.json", dense)
        write("Dense/config.json", dense | {"module_input_name": "token_embeddings"})
        write("Normalize/config.json", {"module_input_name": "token_embeddings"})
        if architecture == "HF_ColBERT":
            save_file({"linear.weight": zeros(4, 8)}, folder / "model.safetensors")
        kind = "MultiVectorEncoder" if "MultiVectorMask" in listed else None
        settings |= {"model_type": kind, "query_length": 32, "document_length": 180}
    elif architecture.endswith("Model"):
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
        if folder.name.startswith("ettin"):
            kinds.append(("2_Dense", "Dense"))
            settings["model_type"] = "CrossEncoder"
            dense = {"in_features": 8, "out_features": 1, "module_output_name": "scores"}
            write("2_Dense/config.json", dense)
            write("config.json", config | {"hidden_size": 8})
        write(
            "modules.json", [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds]
        )
        write("1_Pooling/config.json", {"pooling_mode_cls_token": True})
    write("config_sentence_transformers.json", settings)
    write("onnx/model.onnx", None)


@pytest.mark.parametrize("line", LINES)
def test_the_line_that_serves_a_model_is_taken(
    farrank: "Callable[..., Outcome]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    source = words[words.index("--ranker") + 1].removeprefix("mine=")
    if source != "embedded":
        model_type, architecture, tokenizer = PUBLISHED[source]
        publish(tmp_path / source, model_type, architecture, tokenizer())
    outcome = farrank(*words, "--dry-run")
    assert (outcome.exit_code, outcome.out, outcome.err) == (0, "the configuration can be served\n", "")


def test_every_line_is_read() -> None:
    page = (ROOT / "docs/reference/models.md").read_text(encoding="utf-8")
    assert len(LINES) == page.count("| `farrank serve") == len(PUBLISHED) + 1
