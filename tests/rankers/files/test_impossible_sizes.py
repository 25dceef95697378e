"""Impossible values in an artifact's files: one clear error each, at once, that names the place."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farrank_rankers.errors import RankerError, SourceError, SpecError
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker

HUGE = 10**30


@pytest.fixture(scope="module")
def saved(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_ranker(new_ranker("parade-transf-rand", make_model("bert"), max_query_tokens=8), folder)
    return folder


@pytest.fixture
def artifact(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "artifact"))


def write(artifact: Path, file: str, keys: str, value: object) -> None:
    """Set a value inside a JSON file. Its place is given by keys with dots between them."""
    values = json.loads((artifact / file).read_text())
    *outer, last = keys.split(".")
    inner = values
    for key in outer:
        inner = inner[key]
    inner[last] = value
    (artifact / file).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("chunking.stride", -1, "chunking.stride is -1; it must be at least 1"),
        ("chunking.window", 0, "chunking.window is 0; it must be at least 1"),
        ("chunking.window", "wide", "chunking.window is 'wide'; it must be a whole number"),
        ("chunking.window", HUGE, "would exceed the 128 positions"),
        ("chunking.max_document_tokens", HUGE, "it must be at most 16,777,216"),
        ("chunking.max_document_tokens", 60_000, "positions of the aggregator's transformer hold at most"),
        ("max_query_tokens", 1.5, "max_query_tokens is 1.5; it must be a whole number"),
        ("max_query_tokens", HUGE, "would exceed the 128 positions"),
        ("pad_query_to", HUGE, "would exceed the 128 positions"),
        ("options.layers", 0, "layers is 0; it must be at least 1"),
        ("options.layers", HUGE, "it must be at most 128"),
        ("options.heads", 7, "heads is 7; it must divide the width of 32"),
        ("options.positions", HUGE, "it must be at most 1,048,576"),
        ("options.use_separators", 1, "options.use_separators is 1; it must be true or false"),
        ("options", None, "options is None; it must be an object"),
        ("family", ["maxp"], "family is ['maxp']; it must be one of firstp"),
    ],
)
def test_a_spec_is_held_to_its_limits(artifact: Path, keys: str, value: object, message: str) -> None:
    write(artifact, "ranker.json", keys, value)
    with pytest.raises(SpecError) as error:
        open_ranker(artifact)
    assert message in str(error.value)
    assert str(artifact) in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", [], "model_type is []; it must be a name"),
        ("max_position_embeddings", "many", "max_position_embeddings is 'many'; it must be a whole number"),
        ("pad_token_id", 1.5, "pad_token_id is 1.5; it must be a whole number"),
        ("type_vocab_size", [2], "type_vocab_size is [2]; it must be a whole number"),
        ("vocab_size", True, "vocab_size is True; it must be a whole number"),
        ("hidden_size", -1, "cannot be built"),
        ("hidden_size", HUGE, "cannot be built"),
        ("hidden_act", "zigzag", "cannot be built"),
        ("num_attention_heads", 5, "cannot be built"),
        ("num_attention_heads", -1, "num_attention_heads is -1; it must be from 1 to 1,000"),
        ("num_hidden_layers", HUGE, "it must be from 1 to 1,000"),
        ("num_hidden_layers", 1, "has the tensor encoder.backbone.encoder.layer.1"),
    ],
)
def test_a_backbone_that_cannot_be_is_refused(artifact: Path, key: str, value: object, message: str) -> None:
    write(artifact, "config.json", key, value)
    with pytest.raises(SourceError) as error:
        open_ranker(artifact)
    assert message in str(error.value)
    assert str(artifact) in str(error.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "tokenizer.json is missing"),
        (lambda path: path.write_text("{"), "tokenizer.json cannot be read"),
        (lambda path: path.write_text("[]"), "tokenizer.json cannot be read"),
        (lambda path: path.write_bytes(b"\xff"), "tokenizer.json cannot be read"),
    ],
)
def test_a_damaged_tokenizer_is_named(artifact: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(artifact / "tokenizer.json")
    for opened in (open_reader, open_ranker):
        with pytest.raises(RankerError) as error:
            opened(artifact)
        assert message in str(error.value)
        assert str(artifact) in str(error.value)
