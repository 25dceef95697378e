"""Rankers whose token vectors are principal components of the backbone's."""

from __future__ import annotations

import shutil
import string
from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_rankers.errors import SpecError
from farrank_rankers.family import MaxSimOptions
from farrank_rankers.files import projected
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.projected import new_projected_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import ChunkFramer
from support.random_weights import write_random_weights

TEXTS = [f"document {number} about rivers, lakes and the {number} seas of the north" for number in range(12)]


@pytest.fixture(scope="module")
def backbone(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny backbone with weights."""
    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    shutil.copytree(tiny_backbone, folder)
    write_random_weights(folder)
    return folder


def token_vectors(ranker: Ranker, texts: list[str]) -> np.ndarray:
    """Encode texts one by one, without the head. Shapes: -> (T, H)."""
    found = []
    for text in texts:
        chunks = ranker.reader.split(ranker.reader.read_document(text))
        for item in ChunkFramer(ranker.reader, None).inputs(chunks):
            with torch.no_grad():
                output = ranker.encoder.run(*ranker.tensors([item]))
            found.append(output.last_hidden_state[0].double().numpy())
    return np.concatenate(found)


def test_the_projection_keeps_the_most_variance_of_the_token_vectors(backbone: Path) -> None:
    ranker = new_projected_ranker(backbone, 3, TEXTS)

    vectors = token_vectors(ranker, TEXTS)
    centred = vectors - vectors.mean(axis=0)
    _, strengths, directions = np.linalg.svd(centred, full_matrices=False)
    projection = ranker.encoder.get_parameter("head.0.linear.weight").detach().double().numpy()
    assert projection.shape == (3, vectors.shape[1])
    cosines = np.abs((projection * directions[:3]).sum(axis=1))
    assert cosines == pytest.approx(1, abs=1e-3)
    kept = np.square(centred @ projection.T).sum()
    assert kept == pytest.approx(np.square(strengths[:3]).sum(), rel=1e-4)


def test_texts_have_the_strongest_directions_of_the_windows_means(backbone: Path) -> None:
    ranker = new_projected_ranker(backbone, 3, TEXTS)

    means = np.stack([token_vectors(ranker, [text]).mean(axis=0) for text in TEXTS])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    _, strengths, directions = np.linalg.svd(means, full_matrices=False)
    projection = ranker.encoder.get_parameter("text_head.0.linear.weight").detach().double().numpy()
    assert projection.shape == (6, means.shape[1])
    # The first directions; the strengths of the others are those of rounding.
    cosines = np.abs((projection * directions[:6]).sum(axis=1))[strengths[:6] > 1e-3]
    assert len(cosines) >= 2
    assert cosines == pytest.approx(1, abs=1e-3)


def test_texts_may_have_more_values_than_the_backbone(backbone: Path) -> None:
    width = token_vectors(new_projected_ranker(backbone, 3, TEXTS), TEXTS[:1]).shape[1]
    ranker = new_projected_ranker(backbone, width, TEXTS)
    projection = ranker.encoder.get_parameter("text_head.0.linear.weight")
    assert projection.shape == (2 * width, width)
    assert not projection[width:].any()
    assert projection[:width].square().sum(dim=1).tolist() == pytest.approx([1] * width, abs=1e-4)


def test_the_ranker_compares_words_in_windows_and_the_best_one_decides(backbone: Path) -> None:
    ranker = new_projected_ranker(backbone, 4, TEXTS)

    options = ranker.spec.options_as(MaxSimOptions)
    find = ranker.reader.tokenizer.tokenizer.token_to_id
    assert {*options.skipped} == {find(mark) for mark in string.punctuation}
    assert (options.aggregation, options.mean, options.normalize) == ("max", True, True)
    assert options.compared_windows == 8
    assert ranker.spec.chunking.kind == "disjoint"
    assert ranker.spec.chunking.window <= 178
    read = len(token_vectors(ranker, TEXTS))
    assert ranker.spec.provenance["head"] == f"principal components of {read} token vectors"


def test_limits_replace_the_window(backbone: Path) -> None:
    ranker = new_projected_ranker(backbone, 4, TEXTS, window=10, stride=10, max_query_tokens=5)

    assert (ranker.spec.chunking.window, ranker.spec.max_query_tokens) == (10, 5)


def test_the_same_texts_make_the_same_ranker(backbone: Path, tmp_path: Path) -> None:
    first, second = (new_projected_ranker(backbone, 4, TEXTS) for _ in range(2))

    save_ranker(first, tmp_path / "ranker")

    assert first.version == second.version == open_ranker(tmp_path / "ranker").version
    assert first.version != new_projected_ranker(backbone, 4, TEXTS[:6]).version


def test_the_backbone_keeps_its_weights(backbone: Path) -> None:
    ranker = new_projected_ranker(backbone, 4, TEXTS)

    original = new_ranker("biencoder", backbone).encoder.backbone.state_dict()
    found = ranker.encoder.backbone.state_dict()
    assert found.keys() == original.keys()
    assert all(torch.equal(found[name], original[name]) for name in found)


def test_only_the_first_windows_are_read(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projected, "MOST_WINDOWS", 3)

    ranker = new_projected_ranker(backbone, 4, (text for text in TEXTS))

    assert ranker.version == new_projected_ranker(backbone, 4, TEXTS[:3]).version


@pytest.mark.parametrize("width", [0, 100_000])
def test_a_width_beyond_the_backbones_is_refused(backbone: Path, width: int) -> None:
    with pytest.raises(SpecError, match=rf"^width is {width}; it must be 1 to \d+, the width of "):
        new_projected_ranker(backbone, width, TEXTS)


def test_a_projection_needs_a_text(backbone: Path) -> None:
    with pytest.raises(SpecError, match=r"^texts is empty; a projection needs at least 1 text$"):
        new_projected_ranker(backbone, 4, [])
