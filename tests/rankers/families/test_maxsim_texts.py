"""A multi-vector model with vectors of whole texts: its formula, in every implementation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from farrank_rankers.errors import SpecError
from farrank_rankers.family import HeadLayer, MaxSimOptions
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput, Role
from support.packed_backbones import stream_of
from support.ranker_inputs import inputs_of

QUERY = "hello long windows"
SENTENCE = "the long document ranks chunks of passages by a query and its tokens while windows slide over "
DOCUMENTS = ["hello", SENTENCE * 5, "", SENTENCE * 2 + "hello world of long windows " + SENTENCE]
WIDTH = 4
SKIPPED = 60
GIVEN: dict[str, Any] = {
    "head": (HeadLayer("dense", WIDTH, bias=False),),
    "text_head": (HeadLayer("dense", 2 * WIDTH),),
    "aggregation": "max",
    "mean": True,
    "skipped": (SKIPPED,),
}


def make(backbone: Path, **given: Any) -> Ranker:
    options = MaxSimOptions(**GIVEN | given)
    return new_ranker(
        "maxsim", backbone, options=options, window=16, stride=16, seed=3, pretrained=False
    ).eval()


def hidden(ranker: Ranker, item: EncoderInput) -> tuple[Tensor, Tensor]:
    """Encode one input alone. Returns the text's vector, and those of the tokens that are compared."""
    with torch.no_grad():
        states = ranker.encoder.run(*ranker.tensors([item])).last_hidden_state[0]  # (L, H)
        heads = (ranker.encoder.get_submodule(name) for name in ("head", "text_head"))
        tokens, text = (head(each) for head, each in zip(heads, (states, states.mean(dim=0)), strict=True))
    compared = [role != Role.SKIPPED for role in item.roles.tolist()]
    inner = normalize(tokens, dim=-1)[1:-1][compared[1:-1]]
    return normalize(text, dim=-1), inner


def formula(ranker: Ranker, document: str, most: int | None) -> tuple[float, list[float]]:
    reader = ranker.reader
    asked, own = hidden(ranker, reader.query_input(reader.read_query(QUERY)))
    chunks = reader.split(reader.read_document(document))
    windows = [hidden(ranker, reader.chunk_input(None, chunk)) for chunk in chunks]
    texts = [float(asked @ text) for text, _ in windows]
    best = sorted(range(len(texts)), key=lambda place: -texts[place])[:most]
    scores = []
    for place, (_, tokens) in enumerate(windows):
        of_tokens = 0.0
        if place in best and len(tokens):
            of_tokens = float((own @ tokens.T).amax(dim=1).mean())
        scores.append((texts[place] + of_tokens) / 2)
    return max(scores), scores


@pytest.mark.parametrize("most", [None, 1, 2, 100])
def test_scores_are_the_formulas(tiny_backbone: Path, most: int | None) -> None:
    ranker = make(tiny_backbone, compared_windows=most)
    assert len(ranker.reader.split(ranker.reader.read_document(DOCUMENTS[1]))) > 3
    for found, document in zip(ranker.score(QUERY, DOCUMENTS), DOCUMENTS, strict=True):
        score, of_windows = formula(ranker, document, most)
        assert found.score == pytest.approx(score, abs=1e-5)
        assert list(found.chunk_scores) == pytest.approx(of_windows, abs=1e-5)


def test_fewer_compared_windows_change_scores_and_no_vector(tiny_backbone: Path) -> None:
    few, all_of_them = (make(tiny_backbone, compared_windows=most) for most in (1, None))
    assert few.encodings_version == all_of_them.encodings_version
    assert few.version != all_of_them.version
    scores = [
        [each.chunk_scores for each in ranker.score(QUERY, DOCUMENTS[1:2])] for ranker in (few, all_of_them)
    ]
    assert scores[0] != scores[1]


def test_a_saved_ranker_has_the_same_scores(tiny_backbone: Path, tmp_path: Path) -> None:
    ranker = make(tiny_backbone, compared_windows=2)
    save_ranker(ranker, tmp_path / "artifact")
    again = open_ranker(tmp_path / "artifact")
    assert again.version == ranker.version
    scores = [[each.score for each in one.score(QUERY, DOCUMENTS)] for one in (ranker, again)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"aggregation": "union"}, "aggregation is 'union'; it must be 'max' with a text_head"),
        ({"mean": False}, "mean is False; it must be True with a text_head"),
        ({"normalize": False}, "normalize is False; it must be True with a text_head"),
        (
            {"expand_to": 32, "expansion_token": 1},
            "expand_to is 32; it must be 0 with a text_head",
        ),
        ({"compared_windows": 0}, "compared_windows is 0; it must be at least 1"),
        (
            {"compared_windows": 3, "text_head": ()},
            "compared_windows is 3; it needs a text_head, which chooses them",
        ),
    ],
)
def test_options_are_checked(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        MaxSimOptions(**GIVEN | given)


def test_a_text_has_vectors_twice_as_wide_as_tokens(tiny_backbone: Path) -> None:
    with pytest.raises(
        SpecError, match="text_head ends with width 4; it must be 8, twice that of a token's vector"
    ):
        make(tiny_backbone, text_head=(HeadLayer("dense", WIDTH),))


def test_the_special_tokens_at_both_ends_are_compared(tiny_backbone: Path) -> None:
    reader = make(tiny_backbone).reader
    ends = reader.query_input(reader.read_query(QUERY)).input_ids[[0, -1]].tolist()
    for token in ends:
        with pytest.raises(SpecError, match=rf"skipped holds {token}, the special token in whose place"):
            make(tiny_backbone, skipped=(token,))


def test_a_batch_and_a_stream_have_the_same_vectors(tiny_backbone: Path) -> None:
    ranker = make(tiny_backbone)
    inputs = inputs_of(ranker)
    with torch.inference_mode():
        padded = ranker.encoder(*ranker.tensors(inputs)).rows()
        packed = PackedEncoder(ranker.encoder, plain_attention)(stream_of(inputs))
    assert len({len(each.vectors) for each in padded}) > 1
    for mine, theirs in zip(packed, padded, strict=True):
        torch.testing.assert_close(mine.vectors, theirs.vectors, rtol=1e-5, atol=1e-5)
