"""Folders of multi-vector models that cannot be served as they are get one line with the reason."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from farrank_rankers.errors import SourceError, WeightsError
from farrank_rankers.files.open import open_ranker, open_reader
from support.multi_vector_models import (
    save_backbone,
    save_pylate,
    save_sentence_transformers,
    save_stanford,
    write,
)

needs_6 = pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)
# Characters of a message without the path of the folder.
LONGEST = 220


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    write(path, found | changes)


def edit_modules(folder: Path, kinds: list[str]) -> None:
    write(folder / "modules.json", [{"path": "", "type": kind} for kind in kinds])


TRANSFORMER, MASK, DENSE = "sentence_bert_config.json", "2_MultiVectorMask/config.json", "1_Dense/config.json"
CONFIG = "config_sentence_transformers.json"
EXPANSION = {"strategy": "fixed", "attend": False, "token": None, "length": 32}
OWN: dict[str, tuple[Callable[[Path], None], str]] = {
    "unknown key": (lambda at: edit(at, TRANSFORMER, flavour=1), "'flavour' is unknown here"),
    "task": (
        lambda at: edit(at, TRANSFORMER, transformer_task="retrieval"),
        "transformer_task is 'retrieval'",
    ),
    "processing": (
        lambda at: edit(at, TRANSFORMER, processing_kwargs={"text": {"padding": True}}),
        "processing_kwargs is",
    ),
    "lowercasing": (lambda at: edit(at, TRANSFORMER, do_lower_case=True), "do_lower_case is true"),
    "expansion's key": (
        lambda at: edit(at, TRANSFORMER, query_expansion=EXPANSION | {"side": "left"}),
        "query_expansion: 'side' is unknown here",
    ),
    "expansion's strategy": (
        lambda at: edit(at, TRANSFORMER, query_expansion=EXPANSION | {"strategy": "double"}),
        "query_expansion.strategy is 'double'; it must be one of fixed, min",
    ),
    "expansion's length": (
        lambda at: edit(at, TRANSFORMER, query_expansion=EXPANSION | {"length": 0}),
        "query_expansion.length is 0; it must be at least 1",
    ),
    "expansion's token": (
        lambda at: edit(at, TRANSFORMER, query_expansion=EXPANSION | {"token": "[NONE]"}),
        "tokenizer.json lacks the token of query_expansion, [NONE]",
    ),
    "no room": (
        lambda at: edit(at, TRANSFORMER, document_length=2),
        "has inputs of 2 tokens for a document; no token of a text fits in",
    ),
    "queries' skiplist": (
        lambda at: edit(at, MASK, skiplist_tasks=["query", "document"]),
        "skiplist_tasks is ['query', 'document']; only ['document'] is served",
    ),
    "images": (lambda at: edit(at, MASK, keep_only_token_ids=[3]), "keep_only_token_ids is set"),
    "residual": (lambda at: edit(at, DENSE, use_residual=1), "use_residual is 1; it must be true or false"),
    "pooled input": (
        lambda at: edit(at, DENSE, module_input_name="sentence_embedding"),
        "module_input_name is 'sentence_embedding'; only 'token_embeddings' is served",
    ),
    "pooled norm": (
        lambda at: edit(at, "3_Normalize/config.json", module_input_name="sentence_embedding"),
        "module_input_name is 'sentence_embedding'; it must be token_embeddings",
    ),
    "similarity": (
        lambda at: edit(at, CONFIG, similarity_fn_name="cosine"),
        "similarity_fn_name is 'cosine'; it must be one of maxsim, meanmaxsim",
    ),
    "modules": (
        lambda at: edit_modules(at, ["Transformer", "Pooling", "MultiVectorMask"]),
        "lists Transformer, Pooling, MultiVectorMask; of a multi-vector model only",
    ),
    "code": (
        lambda at: edit(at, "config.json", auto_map={"AutoModel": "modeling.Own"}),
        "code that auto_map names is never run",
    ),
}


def check(folder: Path, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        open_reader(folder)
    found = str(refused.value)
    assert message in found
    assert "\n" not in found
    assert len(found.replace(str(folder), "")) <= LONGEST


@needs_6
@pytest.mark.parametrize("name", OWN)
def test_folders_of_sentence_transformers_are_refused(tmp_path: Path, name: str) -> None:
    folder = save_sentence_transformers(save_backbone(tmp_path / "base"), tmp_path / "saved")
    open_reader(folder)
    change, message = OWN[name]
    change(folder)
    check(folder, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda at: edit(at, CONFIG, query_prefix=7), "query_prefix is 7; it must be a string"),
        (lambda at: edit(at, CONFIG, skiplist_words="."), "skiplist_words is '.'; it must be a list"),
        (lambda at: edit(at, CONFIG, query_length=0), "query_expansion.length is 0"),
        (
            lambda at: edit_modules(at, ["Transformer", "pylate.models.Dense.Dense", "LayerNorm"]),
            "lists Transformer, Dense, LayerNorm; of PyLate's models only Transformer and Dense are read",
        ),
    ],
)
def test_folders_of_pylate_are_refused(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    folder = save_pylate(save_backbone(tmp_path / "base"), tmp_path / "saved")
    change(folder)
    check(folder, message)


def test_stanfords_folders_are_refused(tmp_path: Path) -> None:
    folder = save_stanford(save_backbone(tmp_path / "base"), tmp_path / "saved", similarity="l2")
    check(folder, "similarity is 'l2'; only cosine is served")
    write(folder / "artifact.metadata", {"doc_maxlen": "long"})
    check(folder, "doc_maxlen is 'long'; it must be a whole number")
    write(folder / "artifact.metadata", {"query_maxlen": 3})
    check(folder, "has inputs of 3 tokens for a query")


def test_a_colbert_needs_its_projection(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_stanford(save_backbone(tmp_path / "base"), tmp_path / "saved")
    tensors = load_file(folder / "model.safetensors")
    del tensors["linear.weight"]
    save_file(tensors, folder / "model.safetensors")
    check(folder, "lacks the tensor linear.weight, the projection")


def test_a_dense_layer_needs_its_weights(tmp_path: Path) -> None:
    folder = save_pylate(save_backbone(tmp_path / "base"), tmp_path / "saved")
    (folder / "1_Dense" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"1_Dense.*model.safetensors is missing"):
        open_ranker(folder)
