"""Token vectors are encoded for an index as the served ranker encodes them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from farrank_indexes.chunk_encoder import ChunkEncoder, TokenVectorEncoder, encoding_store
from farrank_indexes.encodings_store import EncodingsStoreBuilder
from farrank_indexes.token_vector_store import TokenVectorsBuilder, TokenVectorStore
from farrank_rankers.files.open import open_ranker
from farrank_rankers.tokens import Role
from farrank_runtimes.maxsim import compared_vectors
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_settings.errors import ConfigError

TEXTS = ["The Rhine rises in the Alps. " * 40, "", "Bread 🍞 is\r\n baked.", "a word. " * 700]


def test_a_multi_vector_ranker_reads_from_the_store_what_it_would_encode(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    source = str(tiny_rankers["maxsim"])
    builder = encoding_store(source, "fp32", codec="fp16")
    assert isinstance(builder, TokenVectorsBuilder)
    writer = builder.open(tmp_path, 0, None)
    writer.add(TEXTS)
    writer.finish("it")
    writer.close()
    store = TokenVectorStore(tmp_path / builder.key, "it")
    ranker = open_ranker(source)
    reader = ranker.reader
    runtime = TorchRuntime(ranker, "fp32", "cpu", 1)
    for place, text in enumerate(TEXTS):
        stored = store.read(place)
        read = reader.read_document(text, count_tokens=True)
        chunks = reader.split(read)
        assert stored.spans.tolist() == [[chunk.start, chunk.end] for chunk in chunks]
        assert (stored.cut.characters, stored.cut.tokens) == (read.characters_cut, read.tokens_cut)
        assert store.characters(place) == len(text)
        rows = [runtime.encode([reader.chunk_input(None, chunk)]).rows()[0] for chunk in chunks]
        compared = [
            row.vectors[(row.token_roles != Role.PADDING) & (row.token_roles != Role.SKIPPED)] for row in rows
        ]
        found = compared_vectors(stored.features)
        assert np.diff(found.ends, prepend=0).tolist() == [len(each) for each in compared]
        assert found.rows.float().numpy() == pytest.approx(torch.cat(compared).numpy(), abs=6e-4)
    runtime.close()


def test_a_source_has_the_store_of_its_family(tiny_rankers: dict[str, Path]) -> None:
    chunks = encoding_store(str(tiny_rankers["biencoder"]))
    tokens = encoding_store(str(tiny_rankers["maxsim"]), codec="int4")
    assert isinstance(chunks, EncodingsStoreBuilder)
    assert isinstance(tokens, TokenVectorsBuilder)
    assert (tokens.codec, tokens.encoder.width, tokens.vectors_version) == ("int4", 8, None)
    chunks.encoder.close()
    tokens.encoder.close()


def test_a_width_that_the_codec_cannot_pack_is_refused_before_anything_is_read(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tiny_rankers["maxsim"])
    monkeypatch.setattr(
        TokenVectorEncoder, "encode", lambda *_: [SimpleNamespace(vectors=np.zeros((1, 7), np.float32))]
    )
    with pytest.raises(ConfigError, match=r"have 7 dimensions; int4 needs an even number; use another codec"):
        encoding_store(source, codec="int4")
    encoding_store(source, codec="int8").encoder.close()


def test_other_families_are_refused(tiny_rankers: dict[str, Path]) -> None:
    maxp, biencoder, maxsim = (str(tiny_rankers[name]) for name in ("maxp", "biencoder", "maxsim"))
    with pytest.raises(ConfigError, match="is of family maxp; only a bi-encoder encodes chunks alone"):
        encoding_store(maxp)
    with pytest.raises(ConfigError, match="is of family maxsim; only a bi-encoder encodes chunks alone"):
        ChunkEncoder(maxsim)
    with pytest.raises(ConfigError, match="is of family biencoder; it does not compare token vectors"):
        TokenVectorEncoder(biencoder)
    with pytest.raises(ConfigError, match="is of family biencoder; only token vectors have a codec"):
        encoding_store(biencoder, codec="int8")
