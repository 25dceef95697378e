"""Tiny rankers to train: of every family, without dropout unless a test requires it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from support.tiny_tokenizers import save_tokenizer, wordpiece
from support.training_groups import MakeRanker, without_dropout

CHUNKING = {
    "first": Chunking("first", 24, 24, 64),
    "disjoint": Chunking("disjoint", 24, 24, 64),
    "sliding": Chunking("sliding", 24, 16, 64),
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def backbone(folder: Path, **changes: float) -> Path:
    """Write the configuration of a BERT of 2 layers, 32 wide, and a tokenizer of a few words."""
    tokenizer = wordpiece()
    save_tokenizer(tokenizer, folder, "bert")
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 128,
        "pad_token_id": tokenizer.token_to_id("[PAD]"),
        "initializer_range": 0.1,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.fixture(scope="session")
def small_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with its usual dropout."""
    return backbone(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def steady_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT without dropout, whose gradients are always the same."""
    folder = tmp_path_factory.mktemp("steady-bert")
    return backbone(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="session")
def make_ranker(
    small_backbone: Path, steady_backbone: Path, tiny_options: dict[str, dict[str, Any]]
) -> MakeRanker:
    """Make a small ranker of a family. `dropout` keeps the dropout of backbone and head."""

    def make(family: str, seed: int = 3, *, dropout: bool = False) -> Ranker:
        ranker = new_ranker(
            family,
            small_backbone if dropout else steady_backbone,
            CHUNKING[FAMILIES[family].chunking],
            seed=seed,
            pretrained=False,
            options=tiny_options.get(family),
            max_query_tokens=8,
        )
        return ranker if dropout else without_dropout(ranker)

    return make


@pytest.fixture(scope="session")
def make_architecture() -> Callable[[str], torch.nn.Module]:
    """Build a tiny backbone of an architecture. Its weights do not matter."""

    def make(architecture: str) -> torch.nn.Module:
        changes: dict[str, Any] = {"attention_window": 16} if architecture == "longformer" else {}
        values = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32}
        config = AutoConfig.for_model(architecture, intermediate_size=16, **values, **changes)
        model: torch.nn.Module = AutoModel.from_config(config)
        return model

    return make
