"""Texts encoded by transformers' own tokenizer and model, one chunk at a time, without Farrank's code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

Vector = list[float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Literally:
    """A backbone's folder, opened with transformers."""

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
        """Encode [CLS] query padding [SEP] chunk [SEP]. Returns the last layer's vectors."""
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


class ReadChunk(NamedTuple):
    """All layers of one chunk's input. Shapes: cls (L+1, H), query (Q, L+1, H), document (T, L+1, H)."""

    cls: Floats
    query: Floats
    document: Floats


ReadDocument = Callable[..., list[ReadChunk]]


@pytest.fixture(scope="session")
def read_document() -> ReadDocument:
    """Read a document in chunks of `window` tokens with a query cut at `max_query_tokens`."""

    def read(
        folder: Path,
        query: str,
        document: str,
        window: int,
        most: int,
        pad_query_to: int,
        max_query_tokens: int,
    ) -> list[ReadChunk]:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        backbone = AutoModel.from_pretrained(folder).eval()
        query_ids = tokenizer(query, add_special_tokens=False)["input_ids"][:max_query_tokens]
        tokens = tokenizer(document, add_special_tokens=False)["input_ids"][:most]
        padding = max(0, pad_query_to - len(query_ids))
        chunks = []
        for first in range(0, max(1, len(tokens)), window):
            part = tokens[first : first + window]
            before = [tokenizer.cls_token_id, *query_ids]
            after = [tokenizer.sep_token_id, *part, tokenizer.sep_token_id]
            ids = [*before, *[tokenizer.pad_token_id] * padding, *after]
            attended = [1] * len(before) + [0] * padding + [1] * len(after)
            segments = [0] * (len(before) + padding + 1) + [1] * (len(part) + 1)
            with torch.inference_mode():
                states = backbone(
                    input_ids=torch.tensor([ids]),
                    attention_mask=torch.tensor([attended]),
                    token_type_ids=torch.tensor([segments]),
                    output_hidden_states=True,
                ).hidden_states
            layers = np.stack([state[0].double().numpy() for state in states], axis=1)  # (S, L+1, H)
            document_start = len(before) + padding + 1
            chunks.append(
                ReadChunk(
                    cls=layers[0],
                    query=layers[1 : len(before)],
                    document=layers[document_start : document_start + len(part)],
                )
            )
        return chunks

    return read
