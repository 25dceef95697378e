"""A multi-vector ranker without training: the embedded backbone, and a projection from PCA."""

import string
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_rankers.family import HeadLayer
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.open import open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.token_vectors import are_compared
from farrank_runtimes.torch_runtime import TorchRuntime

WIDTH = 128
# The window of ColBERTv2 without its three special tokens; documents skip punctuation, as there.
WINDOW = 177
_CHUNKS, _BATCH = 600, 30


def write_pca_ranker(folder: Path, *, skips_punctuation: bool = True) -> None:
    """Save the ranker. Its projection keeps the first principal components of the documentation's tokens."""
    vocabulary = open_reader(EMBEDDED).tokenizer.tokenizer.get_vocab()
    marks = string.punctuation if skips_punctuation else ""
    skipped = tuple(sorted(vocabulary[mark] for mark in marks if mark in vocabulary))
    bare = _ranker({"skipped": skipped, "normalize": False})
    components = _components(_token_vectors(bare))
    head = (HeadLayer("dense", WIDTH, bias=False),)
    ranker = _ranker({"skipped": skipped, "head": head})
    (weight,) = [each for name, each in ranker.encoder.named_parameters() if "backbone" not in name]
    with torch.no_grad():
        weight.copy_(torch.from_numpy(components))
    save_ranker(ranker, folder)


def _ranker(options: dict[str, object]) -> Ranker:
    return new_ranker("maxsim", EMBEDDED, options=options, window=WINDOW)


def _token_vectors(ranker: Ranker) -> np.ndarray:
    """Encode the beginnings of documents. Shapes: -> (T, H)."""
    reader = ranker.reader
    runtime = TorchRuntime(ranker, "fp32")
    inputs = []
    for document in islice(read_pydoc(), _CHUNKS // 2):
        chunks = reader.split(reader.read_document(document.text))[:4]
        inputs += [reader.chunk_input(None, chunk) for chunk in chunks]
    firsts = range(0, min(_CHUNKS, len(inputs)), _BATCH)
    rows = [row for first in firsts for row in runtime.encode(inputs[first : first + _BATCH]).rows()]
    return np.concatenate([row.vectors[are_compared(row.token_roles)].numpy() for row in rows])


def _components(vectors: np.ndarray) -> np.ndarray:
    """Shapes: (T, H) -> (WIDTH, H)."""
    _, directions = np.linalg.eigh(np.cov(vectors.T))
    return np.ascontiguousarray(directions[:, ::-1][:, :WIDTH].T, dtype=np.float32)
