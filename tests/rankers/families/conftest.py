"""Texts encoded literally: transformers' own tokenizer and model, one chunk at a time, no code of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

Vector = list[float]


@dataclass(frozen=True)
class Literally:
    """A backbone's folder as transformers opens it."""

    tokenizer: Any
    backbone: Any

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def sliding(self, text: str, window: int, stride: int, limit: int) -> list[list[int]]:
        """Cut a text into windows, one after the other, until one reaches the end."""
        tokens = self.tokens(text)[:limit]
        chunks = [tokens[:window]]
        start = 0
        while start + window < len(tokens):
            start += stride
            chunks.append(tokens[start : start + window])
        return chunks

    def pair(self, query: list[int], chunk: list[int], pad_query_to: int = 0) -> list[Vector]:
        """Encode [CLS] query padding [SEP] chunk [SEP]: the last layer's vectors."""
        padding = max(0, pad_query_to - len(query))
        cls, sep, pad = (
            self.tokenizer.cls_token_id,
            self.tokenizer.sep_token_id,
            self.tokenizer.pad_token_id,
        )
        ids = [cls, *query, *[pad] * padding, sep, *chunk, sep]
        segments = [0] * (len(query) + padding + 2) + [1] * (len(chunk) + 1)
        attended = [1] * (len(query) + 1) + [0] * padding + [1] * (len(chunk) + 2)
        return self.encode(ids, segments, attended)

    def encode(self, ids: list[int], segments: list[int], attended: list[int]) -> list[Vector]:
        with torch.inference_mode():
            output = self.backbone(
                input_ids=torch.tensor([ids]),
                token_type_ids=torch.tensor([segments]),
                attention_mask=torch.tensor([attended]),
            )
        vectors: list[Vector] = output.last_hidden_state[0].tolist()
        return vectors


@pytest.fixture(scope="session")
def literally() -> Callable[[Path], Literally]:
    def opened(folder: Path) -> Literally:
        return Literally(AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval())

    return opened
