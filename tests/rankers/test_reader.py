import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.files.open import open_reader
from farrank_rankers.reader import ChunkFramer, Reader
from farrank_rankers.tokens import EncoderInput, Role, collate

MakeModel = Callable[..., Path]
QUERY = "how does a search engine rank"
DOCUMENT = "Neural models score passages; windows slide over the text of a long document. " * 12


@pytest.fixture(scope="module")
def narrow(cross_encoder: Path) -> Reader:
    return open_reader(cross_encoder, window=6, stride=4, max_query_tokens=5)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert"])
@pytest.mark.parametrize("document", [DOCUMENT, "", "😀 café"])
def test_pairs_are_framed_as_transformers_does(make_model: MakeModel, model_type: str, document: str) -> None:
    folder = make_model(model_type)
    reader = open_reader(folder, window=40)
    query = reader.read_query(QUERY)
    chunk = reader.split(reader.read_document(document))[0]
    found = reader.chunk_input(query, chunk)
    longest = 40 + len(query) + reader.tokenizer.pair.special_tokens
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # As a batch, because a single call ignores an empty second text.
    batch = tokenizer([QUERY], [document], truncation="only_second", max_length=longest)
    expected = {name: rows[0] for name, rows in batch.items()}
    assert found.input_ids.tolist() == expected["input_ids"]
    if model_type == "bert":
        assert found.token_type_ids.tolist() == expected["token_type_ids"]
        assert set(found.token_type_ids.tolist()) == {0, 1}
    else:
        assert not found.token_type_ids.any()
    assert found.tokens == len(expected["input_ids"])
    roles = found.roles.tolist()
    query = tokenizer(QUERY, add_special_tokens=False)["input_ids"]
    assert found.input_ids[found.roles == Role.QUERY].tolist() == query[: roles.count(Role.QUERY)]
    assert found.input_ids[found.roles == Role.DOCUMENT].tolist() == chunk.ids.tolist()
    special = set(found.input_ids[found.roles == Role.SPECIAL].tolist())
    assert special == {tokenizer.cls_token_id, tokenizer.sep_token_id}


def test_a_tokenizer_may_leave_segments_out(
    make_model: MakeModel, edit_json: Callable[..., None], narrow: Reader
) -> None:
    folder = make_model("bert")
    edit_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    chunk = narrow.split(narrow.read_document(DOCUMENT))[0]
    assert not open_reader(folder).chunk_input(narrow.read_query(QUERY), chunk).token_type_ids.any()


def test_limits_and_counts(cross_encoder: Path) -> None:
    reader = open_reader(cross_encoder, window=20, stride=10, max_document_tokens=45, max_query_tokens=4)
    query, document = reader.read_query(QUERY), reader.read_document(DOCUMENT, count_tokens=True)
    assert (len(query), len(document)) == (4, 45)
    assert query.tokens_cut == len(reader.tokenizer.ids(QUERY)) - 4 > 0
    assert document.total_tokens == len(reader.tokenizer.ids(DOCUMENT))
    assert document.tokens_cut == document.total_tokens - 45
    assert document.characters_cut == len(DOCUMENT) - reader.tokenizer.read(DOCUMENT, 46).starts[-1]
    assert [len(chunk) for chunk in reader.split(document)] == [20, 20, 20, 15]
    two = reader.read_document(DOCUMENT, max_chunks=2)
    assert (len(two), two.tokens_cut) == (30, None)
    assert two.characters_cut == len(DOCUMENT) - document.starts[30]
    assert [len(chunk) for chunk in reader.split(document, 2)] == [20, 20]


@settings(deadline=None, max_examples=50)
@given(words=st.lists(st.sampled_from(["hello", "cafe\u0301", "漢", "😀", "x\x00y", "text."]), max_size=30))
def test_chunks_know_their_passage(narrow: Reader, words: list[str]) -> None:
    text = " \u0301".join(words)
    document = narrow.read_document(text)
    chunks = narrow.split(document)
    if not words:
        assert [(chunk.start, chunk.end, len(chunk)) for chunk in chunks] == [(0, 0, 0)]
        return
    for chunk in chunks:
        first, end = chunk.index * 4, min(chunk.index * 4 + 6, len(document))
        assert chunk.ids.tolist() == document.ids[first:end].tolist()
        assert (chunk.start, chunk.end) == (document.starts[first], document.ends[end - 1])
        # If a window begins and ends between words, its passage alone gives the same chunk again.
        if text[chunk.start - 1 : chunk.start] in ("", "\u0301") and text[chunk.end : chunk.end + 1] in (
            "",
            " ",
        ):
            assert narrow.tokenizer.ids(text[chunk.start : chunk.end]).tolist() == chunk.ids.tolist()


def test_the_query_is_padded_before_its_separator(cross_encoder: Path) -> None:
    plain = open_reader(cross_encoder, window=6, stride=4, max_query_tokens=20)
    padded = open_reader(cross_encoder, window=6, stride=4, max_query_tokens=20, pad_query_to=20)
    query = plain.read_query("search engine")
    chunk = plain.split(plain.read_document(DOCUMENT))[0]
    found, expected = padded.chunk_input(query, chunk), plain.chunk_input(query, chunk)
    mask = (found.roles != Role.PADDING).astype(int)
    assert found.tokens == 1 + 20 + 1 + 6 + 1
    assert mask.tolist() == [1] * (1 + len(query)) + [0] * (20 - len(query)) + [1] * (1 + 6 + 1)
    assert found.input_ids[mask == 1].tolist() == expected.input_ids.tolist()
    assert found.token_type_ids[mask == 1].tolist() == expected.token_type_ids.tolist()
    assert set(found.input_ids[mask == 0].tolist()) == {padded.pad_id}
    full = plain.read_query("search engine " * 20)
    assert Role.PADDING not in padded.chunk_input(full, chunk).roles


def test_plans_take_only_their_inputs(narrow: Reader) -> None:
    query, document = narrow.read_query(QUERY), narrow.read_document(DOCUMENT)
    chunk = narrow.split(document)[0]
    with pytest.raises(ValueError, match="its query is part of every chunk"):
        narrow.query_input(query)
    with pytest.raises(ValueError, match="its chunks need the query"):
        narrow.chunk_input(None, chunk)
    dual = open_reader("embedded")
    with pytest.raises(ValueError, match="its chunks take no query"):
        dual.chunk_input(query, chunk)


def test_an_empty_query_is_read_as_such(narrow: Reader) -> None:
    assert len(narrow.read_query(" \n")) == 0


@pytest.mark.parametrize(("model_type", "window"), [("bert", 93), ("roberta", 90)])
def test_windows_fill_a_small_backbone(make_model: MakeModel, model_type: str, window: int) -> None:
    # RoBERTa counts positions from 2 and frames a pair with four special tokens.
    reader = open_reader(make_model(model_type), family="avgp")
    assert reader.spec.chunking.window == window
    assert reader.max_input_tokens == (128 if model_type == "bert" else 126)


def test_a_window_too_wide_is_refused(cross_encoder: Path) -> None:
    message = r"window is 94 and max_query_tokens 32: an input of 129 tokens .* exceed the 128 positions"
    with pytest.raises(SpecError, match=message):
        open_reader(cross_encoder, family="avgp", window=94)
    open_reader(cross_encoder, family="avgp", window=94, max_query_tokens=31)
    with pytest.raises(SpecError, match="an input of 129 tokens"):
        open_reader(cross_encoder, family="avgp", window=93, pad_query_to=33)
    with pytest.raises(SpecError, match="max_query_tokens 400"):
        open_reader(cross_encoder, max_query_tokens=400)


def test_a_tokenizer_larger_than_the_backbone_is_refused(
    make_model: MakeModel, edit_json: Callable[..., None]
) -> None:
    folder = make_model("bert")
    edit_json(folder / "config.json", vocab_size=7)
    with pytest.raises(SourceError, match=r"tokens; config\.json has vocab_size 7"):
        open_reader(folder)


def test_a_missing_or_damaged_tokenizer_is_named(make_model: MakeModel, tmp_path: Path) -> None:
    folder = shutil.copytree(make_model("bert"), tmp_path / "model")
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(SourceError, match=r"tokenizer\.json cannot be read"):
        open_reader(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"tokenizer\.json is missing; .*save_pretrained"):
        open_reader(folder)


def test_case_follows_the_configuration(make_model: MakeModel, edit_json: Callable[..., None]) -> None:
    folder = make_model("bert")
    lower = open_reader(folder).read_query("hello").ids.tolist()
    assert open_reader(folder).read_query("HELLO").ids.tolist() == lower
    edit_json(folder / "tokenizer_config.json", do_lower_case=False)
    assert open_reader(folder).read_query("HELLO").ids.tolist() != lower


def test_long_texts_are_read_in_steps(tiny_rankers: dict[str, Path]) -> None:
    """Other texts can be read between two steps. With prompts, too, where a query is read twice."""
    text = "!" * 200_000
    for family in ("maxp", "biencoder", "yes-no"):
        reader = open_reader(str(tiny_rankers[family]))
        for steps in (reader.query_steps(text), reader.document_steps(text, 1431, count_tokens=True)):
            reached = list(steps)
            assert len(reached) > 10
            assert reached[0] < 40_000 < 180_000 < reached[-1]
            assert all(after - before < 40_000 for before, after in pairwise(reached))


def test_batches_are_padded_on_the_right() -> None:
    long = EncoderInput(
        np.array([5, 6, 7], np.int32), np.array([1, 0, 3], np.int32), np.array([0, 1, 1], np.int32)
    )
    short = EncoderInput(np.array([8], np.int32), np.array([2], np.int32), np.array([1], np.int32))
    batch = collate([short, long], pad_id=9)
    assert batch.input_ids.tolist() == [[8, 9, 9], [5, 6, 7]]
    assert batch.roles.tolist() == [[2, 0, 0], [1, 0, 3]]
    assert batch.token_type_ids.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert {array.dtype for array in batch} == {np.dtype(np.int64)}
    with pytest.raises(ValueError, match="inputs is empty"):
        collate([], pad_id=0)


@pytest.mark.parametrize(
    ("tokens", "at_most", "length"), [(17, 64, 32), (16, 64, 16), (63, 64, 64), (50, 60, 60), (61, 60, 61)]
)
def test_a_batch_is_padded_on_to_a_multiple(tokens: int, at_most: int, length: int) -> None:
    item = EncoderInput(*(np.ones(tokens, dtype=np.int32) for _ in range(3)))
    batch = collate([item], pad_id=9, step=16, at_most=at_most)
    assert batch.roles.shape == (1, length)
    assert (batch.input_ids[0, tokens:] == 9).all()
    assert not batch.roles[0, tokens:].any()


def test_reading_needs_no_torch() -> None:
    code = (
        "import sys; from farrank_rankers.files.open import open_reader; r = open_reader('embedded'); "
        "r.split(r.read_document('a b c')); import farrank_rankers.tokens; "
        "print(sorted({'torch', 'transformers', 'safetensors'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("family", ["maxp", "cross-encoder", "biencoder"])
def test_chunks_framed_together_are_framed_as_each_alone(tiny_rankers: dict[str, Path], family: str) -> None:
    reader = open_reader(str(tiny_rankers[family]), window=6, stride=4)
    query = None if reader.spec.plan == "dual" else reader.read_query(QUERY)
    framer = ChunkFramer(reader, query)
    for text in (DOCUMENT, "", "Neural", "Neural models score passages"):
        chunks = reader.split(reader.read_document(text))
        for framed, chunk in zip(framer.inputs(chunks), chunks, strict=True):
            alone = reader.chunk_input(query, chunk)
            for name in ("input_ids", "roles", "token_type_ids"):
                assert getattr(framed, name).tolist() == getattr(alone, name).tolist()
                assert getattr(framed, name).dtype == getattr(alone, name).dtype
