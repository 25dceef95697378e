"""Every backbone in the same rankers has transformers' own vectors, whatever else is in the batch."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from farrank_rankers.chunking import Chunking
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.files.weights import FILE
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate

MakeBackbone = Callable[..., Path]
SaveAndOpen = Callable[[Ranker, str, Sequence[str]], Ranker]

BERTS = ("bert", "electra", "distilbert", "roberta", "deberta-v2", "modernbert")
PUBLIC = (*BERTS, "longformer", "big_bird", "llama")
OWN = ("jina", "mosaic")
CAUSAL = ("llama",)
QUERY = "neural search query"
WORDS = ("the", "long", "document", "ranks", "chunks", "of", "passages", "by", "a", "search engine")
DOCUMENTS = [" ".join(WORDS[i : 3 + 2 * i] * (1 + i * i)) for i in range(6)]


@pytest.fixture(scope="module", params=[*PUBLIC, *OWN])
def folder(request: pytest.FixtureRequest, make_backbone: MakeBackbone) -> Path:
    return make_backbone(request.param)


@pytest.fixture(scope="module")
def architecture(folder: Path) -> str:
    return folder.name.rstrip("0123456789")


@pytest.fixture(scope="module", params=[None, 32], ids=["plain", "query padded"])
def ranker(request: pytest.FixtureRequest, folder: Path, architecture: str) -> Ranker:
    return new_ranker(
        "longp", folder, seed=1, pretrained=architecture not in OWN, pad_query_to=request.param
    ).eval()


# test_literal.py compares the others with their formulas.
@pytest.mark.parametrize("folder", PUBLIC, indirect=True)
def test_an_inputs_vector_is_transformers_own(folder: Path, architecture: str) -> None:
    ranker = new_ranker("firstp", folder, Chunking("first", 60, 60, 60)).eval()
    reader = ranker.reader
    model = AutoModel.from_pretrained(folder).eval()
    if architecture == "big_bird":
        model.set_attention_type("original_full")
    names = ["input_ids", "token_type_ids"]
    if architecture in ("roberta", "distilbert", "llama", "longformer", "deberta-v2", "modernbert"):
        names.remove("token_type_ids")
    for document in ["", *DOCUMENTS]:
        chunk = reader.split(reader.read_document(document))[0]
        item = reader.chunk_input(reader.read_query(QUERY), chunk)
        given = {name: torch.from_numpy(getattr(item, name))[None].long() for name in names}
        if architecture == "longformer":  # [CLS], the query, the first [SEP]
            mask = torch.zeros_like(given["input_ids"])
            mask[0, : len(reader.read_query(QUERY)) + 2] = 1
            given["global_attention_mask"] = mask
        with torch.inference_mode():
            hidden = model(**given).last_hidden_state[0]
            found = ranker.encoder(*map(torch.from_numpy, collate([item], reader.pad_id))).vectors[0]
        expected = hidden.mean(dim=0) if architecture in CAUSAL else hidden[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_companions_order_and_the_past_change_nothing(ranker: Ranker) -> None:
    alone = [ranker.score(QUERY, [document], batch_size=1)[0].score for document in DOCUMENTS]
    assert max(alone) - min(alone) > 0.1  # far more than the tolerance
    for batch_size in (2, 6):
        together = [item.score for item in ranker.score(QUERY, DOCUMENTS, batch_size)]
        assert together == pytest.approx(alone, rel=0, abs=1e-5)
    backwards = [item.score for item in ranker.score(QUERY, DOCUMENTS[::-1])]
    assert backwards[::-1] == pytest.approx(alone, rel=0, abs=1e-5)


@pytest.mark.parametrize("padding", [1, 33, 90])
def test_padding_and_what_stands_there_change_nothing(ranker: Ranker, padding: int) -> None:
    reader = ranker.reader
    chunk = reader.split(reader.read_document(DOCUMENTS[3]))[0]
    batch = collate([reader.chunk_input(reader.read_query(QUERY), chunk)], reader.pad_id)
    wide = [
        np.pad(array, ((0, 0), (0, padding)), constant_values=value)
        for array, value in zip(batch, (7, 0, 0), strict=True)
    ]
    with torch.inference_mode():
        alone = ranker.encoder(*map(torch.from_numpy, batch)).vectors
        padded = ranker.encoder(*map(torch.from_numpy, wide)).vectors
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


def test_with_a_padded_query_the_document_stays_in_its_place(ranker: Ranker, architecture: str) -> None:
    reader = ranker.reader
    chunk = reader.split(reader.read_document(DOCUMENTS[2]))[0]
    inputs = [reader.chunk_input(reader.read_query(query), chunk) for query in ("a", "a search engine")]
    same = reader.spec.pad_query_to is not None
    assert (inputs[0].tokens == inputs[1].tokens) is same
    with torch.inference_mode():
        vectors = ranker.encoder(*map(torch.from_numpy, collate(inputs, reader.pad_id))).vectors
    assert vectors.isfinite().all()
    assert not torch.allclose(vectors[0], vectors[1])


def test_an_artifact_scores_the_same_to_the_bit(ranker: Ranker, save_and_open: SaveAndOpen) -> None:
    save_and_open(ranker, QUERY, DOCUMENTS)


def test_the_backbone_decides_how_vectors_are_pooled(folder: Path, architecture: str) -> None:
    pooling = "mean" if architecture in ("llama", "jina") else "cls"
    for family in ("longp", "firstp", "avgp", "maxp", "sump"):
        options = new_ranker(family, folder, pretrained=False).spec.options
        assert getattr(options, "pooling") == pooling  # noqa: B009  # of the families' common type
    other = new_ranker("maxp", folder, pretrained=False, options={"pooling": "mean"}).spec.options
    assert getattr(other, "pooling") == "mean"  # noqa: B009


def test_every_hidden_state_can_be_had(ranker: Ranker) -> None:
    reader = ranker.reader
    chunks = [reader.split(reader.read_document(text))[0] for text in DOCUMENTS[:3]]
    batch = collate([reader.chunk_input(reader.read_query(QUERY), chunk) for chunk in chunks], reader.pad_id)
    with torch.inference_mode():
        output = ranker.encoder.run(*map(torch.from_numpy, batch), hidden_states=True)
    config: Any = ranker.encoder.backbone.config
    assert len(output.hidden_states) == config.num_hidden_layers + 1
    real = torch.from_numpy(batch.roles) > 0
    torch.testing.assert_close(output.hidden_states[-1][real], output.last_hidden_state[real])


def test_gradients_reach_the_backbone(ranker: Ranker) -> None:
    reader = ranker.reader
    chunk = reader.split(reader.read_document(DOCUMENTS[1]))[0]
    batch = collate([reader.chunk_input(reader.read_query(QUERY), chunk)], reader.pad_id)
    ranker.zero_grad()
    vectors = ranker.encoder(*map(torch.from_numpy, batch)).vectors
    (vectors * torch.arange(32.0)).sum().backward()  # a plain sum is constant after a LayerNorm
    reached = [weight.grad is not None and bool(weight.grad.any()) for weight in ranker.encoder.parameters()]
    assert sum(reached) > 0.6 * len(reached)
    ranker.zero_grad()


# test_own_checkpoints.py loads the others.
@pytest.mark.parametrize("folder", PUBLIC, indirect=True)
def test_a_published_checkpoint_of_a_head_loads_by_name(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "copy")
    ranker = new_ranker("firstp", copied, Chunking("first", 40, 40, 40))
    model = AutoModel.from_pretrained(copied)
    own = ranker.encoder.backbone.state_dict()
    assert (copied / FILE).is_file()
    for name, tensor in model.state_dict().items():
        if not name.startswith("pooler."):
            assert torch.equal(own[name], tensor), name
