"""Published checkpoints of Farrank's own backbones, from a folder to a ranker and back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.errors import SourceError, WeightsError
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker

if TYPE_CHECKING:
    from support.published_checkpoints import Published

QUERY, DOCUMENTS = "a search query", ["hello world " * 400, "", "the long document"]


@pytest.fixture
def config(published: "Published", tiny_backbone: Path) -> dict[str, Any]:
    return published.tiny(vocab_size=30522)


@pytest.fixture
def checkpoint(published: "Published", config: dict[str, Any], tiny_backbone: Path, tmp_path: Path) -> Path:
    """A tiny checkpoint with the published names, in the published form."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_backbone / name).read_bytes())
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: tensor.float() for name, tensor in published.tensors(config).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_checkpoint_fills_the_backbone(
    published: "Published", config: dict[str, Any], checkpoint: Path
) -> None:
    ranker = new_ranker("longp", checkpoint)
    expected = published.model(config).float().state_dict()
    found = ranker.encoder.backbone.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert ranker.reader.max_input_tokens == 3 + 32 + 4096


def test_an_artifact_keeps_what_tells_the_backbone(
    published: "Published", checkpoint: Path, tmp_path: Path
) -> None:
    ranker = new_ranker("longp", checkpoint)
    save_ranker(ranker, tmp_path / "artifact")
    again = open_ranker(tmp_path / "artifact")
    assert type(again.encoder.backbone) is type(ranker.encoder.backbone)
    assert again.version == ranker.version
    scores = [item.score for item in ranker.score(QUERY, DOCUMENTS)]
    assert [item.score for item in again.score(QUERY, DOCUMENTS)] == scores
    kept = json.loads((tmp_path / "artifact" / "config.json").read_text(encoding="utf-8"))
    assert kept["auto_map"] == published.config["auto_map"]
    assert kept["architectures"] == published.config["architectures"]


def test_facts_say_that_nothing_ends_the_positions(published: "Published") -> None:
    facts = BackboneFacts.from_config(published.config)
    assert facts.max_positions is None
    assert facts.token_types == 2
    assert facts.architecture == published.kind
    assert facts.pooling == ("mean" if published.kind == "jina" else "cls")


def test_a_missing_tensor_is_named(published: "Published", config: dict[str, Any], checkpoint: Path) -> None:
    tensors = {name: tensor.float() for name, tensor in published.tensors(config).items()}
    name = next(name for name in tensors if name.endswith("mlp.wo.bias"))
    del tensors[name]
    save_file(tensors, checkpoint / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"model.safetensors lacks the tensor {name} of shape"):
        new_ranker("longp", checkpoint)


def test_a_classifier_on_it_is_refused(checkpoint: Path) -> None:
    with pytest.raises(SourceError, match=r"config.json: architectures .* only the encoder is written out"):
        new_ranker("cross-encoder", checkpoint, pretrained=False)
