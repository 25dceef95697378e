"""The papers' models at full size with random weights, made where they are to run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.chunking import Chunking
from farrank_rankers.papers.models import PaperModel, paper_models
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokenizer import TextTokenizer

# Three full inputs a document, where the papers' windows slide over it in fourteen short ones.
CHUNKINGS: Mapping[str, Chunking] = {
    "parade-attn-bert": Chunking("disjoint", window=477, stride=477, max_document_tokens=1431)
}

# For whoever wants to see the benchmark run, and learn nothing of speed.
TINY: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def build_model(
    name: str, tokenizer: TextTokenizer, device: torch.device, *, tiny: bool = False, seed: int = 0
) -> Ranker:
    """Build a model of the papers on a device, in fp32; a runtime brings it to its precision.

    Raises: KeyError if the papers have no model of the name.
    """
    model = paper_models()[name]
    config = _config(model, tiny=tiny)
    spec = replace(model.spec, chunking=CHUNKINGS.get(name, model.spec.chunking))
    reader = Reader(spec, tokenizer, BackboneFacts.from_config(config))
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        return Ranker(reader, config).eval()


def _config(model: PaperModel, *, tiny: bool) -> dict[str, Any]:
    config = dict(model.config)
    if not tiny:
        return config
    config |= TINY
    if "attention_window" in config:
        config["attention_window"] = config["attention_window"][: config["num_hidden_layers"]]
    if "embedding_size" in config:
        config["embedding_size"] = config["hidden_size"]
    return config
