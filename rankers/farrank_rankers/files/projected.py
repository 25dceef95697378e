"""Late interaction without training: a backbone's token vectors on their principal components."""

import string
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import HeadLayer, MaxSimOptions, family_named
from farrank_rankers.features import PaddedFeatures
from farrank_rankers.files.multi_vector_files import token_ids
from farrank_rankers.files.open import ReadingLimits, open_files
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.json_values import read_value
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import ChunkFramer, Reader
from farrank_rankers.tokens import EncoderInput, Role

# Windows of the length that published multi-vector models read, without the two tokens around a text.
WINDOW = 178
# More make a question slower, and rankings not better (decision 0073).
COMPARED_WINDOWS = 8
# About 100,000 tokens, hundreds for each of the values of a usual backbone's vector.
MOST_WINDOWS = 800
_AT_ONCE = 16


def new_projected_ranker(
    backbone: str | Path,
    width: int,
    texts: Iterable[str],
    *,
    download: bool = False,
    **limits: Unpack[ReadingLimits],
) -> Ranker:
    """Make a multi-vector ranker from a backbone's own weights, with `width` values in a token's vector.

    The projection holds the principal components of the token vectors in the first 800 windows of `texts`.
    That of the texts' own vectors, twice as wide, holds those of the windows' means.
    Documents are read in windows of 178 tokens unless `limits` say otherwise. The best window decides, and
    the tokens of the 8 most promising ones are compared, without punctuation. Two calls with the same texts
    make the same ranker.

    Raises: SourceError, WeightsError or SpecError, each naming the problem.
    """
    files, budget = open_files(backbone, download=download)
    hidden = read_value(int, files.config.get("hidden_size"), f"{backbone}: hidden_size", SourceError)
    if not 1 <= width <= hidden:
        raise SpecError(f"width is {width}; it must be 1 to {hidden}, the width of {backbone}")
    options = MaxSimOptions(
        skipped=token_ids(string.punctuation, budget.tokenizer),
        head=(HeadLayer("dense", width, bias=False),),
        text_head=(HeadLayer("dense", 2 * width, bias=False),),
        aggregation="max",
        mean=True,
        compared_windows=COMPARED_WINDOWS,
    )
    if limits.get("window") is None:
        room = budget.left_for_window(family_named("maxsim"), 0, options)
        limits["window"] = limits["stride"] = WINDOW if room is None else min(WINDOW, room)
    ranker = new_ranker("maxsim", backbone, options=options, download=download, **limits).eval()
    windows = list(islice(_windows(ranker, texts), MOST_WINDOWS))
    of_tokens, of_texts = _components(ranker, windows, hidden)
    for name, components in (("head", of_tokens), ("text_head", of_texts)):
        (projection,) = ranker.encoder.get_submodule(name).parameters()
        with torch.no_grad():
            # A text's vector may be wider than the backbone's: the rest stays 0.
            kept = components[: len(projection)]
            projection.zero_()[: len(kept)] = kept
    head = f"principal components of {sum(each.tokens for each in windows):,} token vectors"
    reader = ranker.reader
    spec = replace(reader.spec, provenance=dict(reader.spec.provenance) | {"head": head})
    ranker.reader = Reader(spec, reader.tokenizer, reader.backbone)
    return ranker


def _windows(ranker: Ranker, texts: Iterable[str]) -> Iterator[EncoderInput]:
    framer = ChunkFramer(ranker.reader, None)
    for text in texts:
        yield from framer.inputs(ranker.reader.split(ranker.reader.read_document(text)))


def _components(ranker: Ranker, windows: list[EncoderInput], hidden: int) -> tuple[Tensor, Tensor]:
    """Find the principal components of all token vectors, and of the windows' means, the largest first.

    Shapes: -> (hidden, hidden) twice.
    """
    if not windows:
        raise SpecError("texts is empty; a projection needs at least 1 text")
    windows.sort(key=lambda each: each.tokens)
    of_tokens, of_texts = (torch.zeros(hidden, hidden, dtype=torch.float64) for _ in range(2))
    total, count = torch.zeros(hidden, dtype=torch.float64), 0
    for start in range(0, len(windows), _AT_ONCE):
        input_ids, roles, token_types = ranker.tensors(windows[start : start + _AT_ONCE])
        with torch.inference_mode():
            output = ranker.encoder.run(input_ids, roles, token_types)
        states = output.last_hidden_state.double()
        vectors = states[roles != Role.PADDING]  # (T, hidden)
        of_tokens += vectors.T @ vectors
        total += vectors.sum(dim=0)
        count += len(vectors)
        means = torch.nn.functional.normalize(PaddedFeatures(roles).mean(states), dim=1)  # (P, hidden)
        # These are compared by cosine, to which their common part belongs.
        of_texts += means.T @ means
    mean = total / count
    return _directions(of_tokens / count - torch.outer(mean, mean)), _directions(of_texts)


def _directions(products: Tensor) -> Tensor:
    """Find a symmetric matrix's eigenvectors, that of the largest value first. Shapes: (H, H) -> (H, H)."""
    components = torch.linalg.eigh(products)[1].T.flip(0)
    # A component may point in either direction; its largest value is positive, on every machine.
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    return (components * largest.sign()).float()
