"""ModernBERT compared with transformers and sentence-transformers, beyond its window, up to 8,192 tokens."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.errors import SourceError
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate
from support.packed_backbones import inputs_of, stream_of

MakeModel = Callable[..., Path]
# 8 and 64 tokens on each side are local.
LENGTHS = (300, 2, 17, 129, 700, 64)
PUBLISHED = {"local_attention": 128}
QUERY = "how does a neural search engine rank a long document"


def logits(ranker: Ranker, inputs: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits from a padded batch and from a stream. Shapes: (P,) each."""
    encoder = ranker.encoder
    with torch.inference_mode():
        batch = map(torch.from_numpy, collate(inputs, ranker.reader.pad_id))
        padded = encoder(*batch).vectors[:, 0]
        features = PackedEncoder(encoder, plain_attention)(stream_of(inputs))
    return padded, torch.stack([each.vectors[0] for each in features])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(
    "changes",
    [{}, PUBLISHED, {"hidden_size": 60, "num_attention_heads": 6}],
    ids=["narrow", "published", "odd heads"],
)
def test_logits_are_transformers_own(make_model: MakeModel, pooling: str, changes: dict[str, Any]) -> None:
    folder = make_model("modernbert", positions=8192, classifier_pooling=pooling, **changes)
    ranker = open_ranker(folder).eval()
    assert ranker.encoder.facts.pooling == pooling
    assert ranker.encoder.reads_first_tokens_alone is (pooling == "cls")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = inputs_of(ranker.encoder, LENGTHS)
    with torch.inference_mode():
        expected = torch.cat(
            [model(torch.from_numpy(item.input_ids)[None].long()).logits[:, 0] for item in inputs]
        )
    assert expected.std() > 0.1  # far more than the tolerance
    for found in logits(ranker, inputs):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_window_shows_where_inputs_are_longer(make_model: MakeModel) -> None:
    """The comparison above would notice if a window were not applied."""
    narrow, wide = (
        open_ranker(make_model("modernbert", positions=8192, local_attention=each)) for each in (16, 4096)
    )
    inputs = inputs_of(narrow.encoder, (9, 40, 300))
    for found, other in zip(logits(narrow, inputs), logits(wide, inputs), strict=True):
        difference = (found - other).abs()
        assert difference[0] < 1e-5
        assert difference[1:].min() > 1e-2


@pytest.mark.parametrize("tokens", [1_000, 9_000])
def test_whole_documents_are_cross_encoders_own(make_model: MakeModel, tokens: int) -> None:
    """8,192 positions are the query's 512, 3 special tokens, and 7,677 of the document."""
    small = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 1}
    folder = make_model("modernbert", positions=8192, classifier_pooling="mean", **PUBLISHED, **small)
    ranker = open_ranker(folder, family="longp").eval()
    assert (ranker.spec.chunking.window, ranker.spec.chunking.max_document_tokens) == (7677, WHOLE_DOCUMENT)
    letters = " ".join("ab"[number * number % 7 % 2] for number in range(tokens))
    document = f"{letters} search"
    scored = ranker.score(QUERY, [document], count_tokens=True)[0]
    read = document[: scored.chunks[0].end]
    assert len(scored.chunks) == 1
    assert scored.tokens_cut == max(0, len(ranker.reader.tokenizer.ids(document)) - 7677)
    reference = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity(), max_length=8192)
    expected = float(reference.predict([(QUERY, read)])[0])
    assert scored.score == pytest.approx(expected, rel=0, abs=1e-5)
    chunk = ranker.reader.split(ranker.reader.read_document(document))[0]
    item = ranker.reader.chunk_input(ranker.reader.read_query(QUERY), chunk)
    with torch.inference_mode():
        packed = PackedEncoder(ranker.encoder, plain_attention)(stream_of([item]))[0].vectors[0]
    assert float(packed) == pytest.approx(expected, rel=0, abs=1e-5)


def test_nothing_is_compiled_or_rounded_by_default(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If flash_attn is installed, transformers 4 would round fp32 to bf16."""
    folder, kind = make_model("modernbert"), transformers.ModernBertPreTrainedModel
    monkeypatch.setattr(kind, "_flash_attn_2_can_dispatch", lambda *_, **__: True, raising=False)
    for family in ("cross-encoder", "maxp"):
        config: Any = new_ranker(family, folder).encoder.backbone.config
        assert config._attn_implementation == "sdpa"
        assert config.reference_compile is False


def test_pooling_is_config_jsons() -> None:
    for said, pooling in (("mean", "mean"), ("cls", "cls"), (None, "cls")):
        config = {"model_type": "modernbert", "classifier_pooling": said, "pad_token_id": 3}
        assert BackboneFacts.from_config(config).pooling == pooling
    with pytest.raises(SourceError, match=r"^config\.json: classifier_pooling is 'max'; it must be one of"):
        BackboneFacts.from_config({"model_type": "modernbert", "classifier_pooling": "max"})
