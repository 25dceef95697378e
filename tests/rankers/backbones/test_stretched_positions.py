"""E5-4K's positions: an input that the original backbone could read takes every eighth position."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.family import BiEncoderOptions
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

MakeBackbone = Callable[..., Path]
POSITIONS, STEP = 256, 8  # up to 32 tokens are stretched
OPTIONS = BiEncoderOptions(query_prefix="query: ", document_prefix="passage: ", position_step=STEP)
WHOLE = Chunking("first", 180, 180, 180)


@pytest.fixture(scope="module")
def folder(make_backbone: MakeBackbone) -> Path:
    return make_backbone("bert", positions=POSITIONS)


@pytest.fixture(scope="module")
def ranker(folder: Path) -> Ranker:
    return new_ranker("biencoder", folder, WHOLE, max_query_tokens=40, options=OPTIONS).eval()


def embedded(folder: Path, ids: list[int]) -> Any:
    """Embed one text without a batch: positions by its own length, mean, unit length."""
    positions = [i * STEP for i in range(len(ids))] if len(ids) <= POSITIONS // STEP else range(len(ids))
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([list(positions)]))
    mean = output.last_hidden_state[0].mean(dim=0)
    return mean / mean.norm()


@pytest.mark.parametrize("lengths", [[31], [32], [33], [9, 170, 31, 32, 33]])
def test_positions_follow_an_inputs_own_length(folder: Path, ranker: Ranker, lengths: list[int]) -> None:
    reader = ranker.reader
    tokenizer = reader.tokenizer
    special = [tokenizer.tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")]

    def framed(prefix: str, text: str) -> list[int]:
        return [special[0], *tokenizer.ids(prefix).tolist(), *tokenizer.ids(text).tolist(), special[1]]

    beside = len(framed("passage:", ""))
    documents = ["search " * (length - beside) for length in lengths]
    assert [len(framed("passage:", text)) for text in documents] == lengths
    query = embedded(folder, framed("query:", "a query"))
    expected = [float(query @ embedded(folder, framed("passage:", text))) for text in documents]
    found = [item.score for item in ranker.score("a query", documents)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)


def test_a_step_of_one_stretches_nothing(folder: Path, ranker: Ranker) -> None:
    plain = new_ranker(
        "biencoder",
        folder,
        WHOLE,
        max_query_tokens=40,
        options={"position_step": 1, "query_prefix": "query: "},
    ).eval()
    assert plain.score("a", ["hello"])[0].score != pytest.approx(
        ranker.score("a", ["hello"])[0].score, abs=1e-3
    )


def test_an_artifact_keeps_the_step(ranker: Ranker, tmp_path: Path) -> None:
    save_ranker(ranker, tmp_path)
    again = open_ranker(tmp_path)
    assert again.spec.options == OPTIONS
    assert again.score("a", ["hello"])[0].score == ranker.score("a", ["hello"])[0].score


def test_a_step_that_cannot_be_is_refused(make_backbone: MakeBackbone) -> None:
    with pytest.raises(SpecError, match="position_step is 0; it must be at least 1"):
        BiEncoderOptions(position_step=0)
    with pytest.raises(
        SpecError, match=r"position_step is 8; it must be 1: jina.* has no table of positions"
    ):
        new_ranker("biencoder", make_backbone("jina"), pretrained=False, options={"position_step": 8})
    with pytest.raises(SpecError, match="position_step is 65; it must be at most the 64 positions of bert"):
        new_ranker("biencoder", make_backbone("bert", positions=64), options={"position_step": 65})
