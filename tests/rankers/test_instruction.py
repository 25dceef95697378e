"""A ranker reads a call with another instruction as its published code would, to 1e-5."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import nn

from farrank_rankers.errors import SpecError
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.tokens import IntArray
from support.language_models import make_language_model
from support.sentence_modules import Pooling, Transformer

QUERY = "what ranks a long document?"
DOCUMENTS = ["windows slide over the text", "hello world, café straße", ""]
TASK = "Find the line that answers {query}."
PROMPT = "Instruct: Given a web search query, retrieve relevant passages\nQuery: "


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2"])
def test_a_language_model_reads_the_same_as_one_that_is_configured_so(
    tmp_path: Path, model_type: str
) -> None:
    """The formulas of tests/rankers/families/test_yes_no.py hold for configured instructions."""
    folder = make_language_model(tmp_path, model_type)
    ranker = open_ranker(folder, window=24, stride=18)
    own = [each.score for each in ranker.score(QUERY, DOCUMENTS)]
    configured = open_ranker(folder, window=24, stride=18, instruction=TASK)
    expected = [each.score for each in configured.score(QUERY, DOCUMENTS)]
    assert [each.score for each in ranker.score(QUERY, DOCUMENTS, instruction=TASK)] == expected
    assert expected != pytest.approx(own, abs=1e-4)
    # The ranker itself has not changed.
    assert [each.score for each in ranker.score(QUERY, DOCUMENTS)] == own


@pytest.fixture(scope="module")
def instructed(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bi-encoder with the prompt of E5 Mistral, Qwen3-Embedding and multilingual-e5-instruct."""
    modules = [Transformer(str(make_model("xlm-roberta"))), Pooling(32, pooling_mode="mean")]
    model = SentenceTransformer(
        modules=modules, device="cpu", prompts={"query": PROMPT}, similarity_fn_name="cosine"
    )
    folder = tmp_path_factory.mktemp("instructed")
    model.save(str(folder), create_model_card=False)
    return folder


def test_a_bi_encoder_has_the_library_s_scores_with_the_prompt(instructed: Path) -> None:
    reference = SentenceTransformer(str(instructed), device="cpu")
    prompt = f"Instruct: {TASK}\nQuery: "
    query = reference.encode([QUERY], prompt=prompt)
    expected = reference.similarity(query, reference.encode(DOCUMENTS))[0].tolist()
    ranker = open_ranker(instructed)
    found = [each.score for each in ranker.score(QUERY, DOCUMENTS, instruction=TASK)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)
    assert found != pytest.approx([each.score for each in ranker.score(QUERY, DOCUMENTS)], abs=1e-3)
    configured = open_ranker(instructed, instruction=TASK)
    assert [each.score for each in configured.score(QUERY, DOCUMENTS)] == found


def test_a_cross_encoder_has_the_library_s_scores_with_the_prompt(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    reference = CrossEncoder(str(make_model("bert", labels=1)), device="cpu", activation_fn=nn.Identity())
    reference.save_pretrained(str(tmp_path))
    ranker = open_ranker(tmp_path, family="firstp", window=40, query_prefix=PROMPT)
    pairs = [(f"Instruct: {TASK}\nQuery: {QUERY}", document) for document in DOCUMENTS]
    expected = reference.predict(pairs).tolist()
    found = [each.score for each in ranker.score(QUERY, DOCUMENTS, instruction=TASK)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)


def test_documents_do_not_depend_on_the_instruction(instructed: Path) -> None:
    """Caches and indexes keep a bi-encoder's documents for all calls."""
    reader = open_reader(instructed)
    other = reader.instructed(TASK)

    def chunks(text: str) -> list[IntArray]:
        return [other.chunk_input(None, chunk).input_ids for chunk in other.split(other.read_document(text))]

    for text in (*DOCUMENTS, "a long text " * 200):
        own = [reader.chunk_input(None, chunk) for chunk in reader.split(reader.read_document(text))]
        assert [each.input_ids.tolist() for each in own] == [each.tolist() for each in chunks(text)]
    asked = [each.query_input(each.read_query(QUERY)).input_ids.tolist() for each in (reader, other)]
    assert asked[0] != asked[1]


@pytest.mark.parametrize("family", ["yes-no", "longp"])
def test_inputs_have_room_for_an_instruction(tmp_path: Path, family: str) -> None:
    folder = make_language_model(tmp_path / "lm", "qwen3", max_position_embeddings=1024)
    reader = open_reader(folder, family=None if family == "yes-no" else family)
    assert reader.longest_input < reader.max_input_tokens <= 1024
    longest = next(text for n in range(400, 0, -1) if len(reader.tokenizer.ids(text := "a" * n)) <= 128)
    query = reader.read_query("rank " * 600)
    other = reader.instructed(longest)
    chunk = other.split(other.read_document("windows " * 2000))[0]
    item = other.chunk_input(other.read_query("rank " * 600), chunk)
    assert item.tokens <= other.longest_input <= reader.max_input_tokens
    assert item.tokens > reader.chunk_input(query, chunk).tokens
    with pytest.raises(SpecError, match=r"has \d+ tokens; the ranker's inputs have room for 1[23]\d$"):
        reader.instructed("word " * 200)


def test_an_artifact_without_room_says_so(tmp_path: Path) -> None:
    folder = make_language_model(tmp_path / "lm", "qwen3", max_position_embeddings=1024)
    special = open_reader(folder).framing_tokens
    save_ranker(open_ranker(folder, window=1024 - 100 - special, max_query_tokens=100), tmp_path / "full")
    reader = open_reader(tmp_path / "full")
    assert reader.max_input_tokens == reader.longest_input == 1024
    reader.instructed("Find it.")
    with pytest.raises(SpecError, match="tokens; the ranker's inputs have room for"):
        reader.instructed("Find the line that answers the question. " * 20)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("gemma", "the template has no {instruction}"),
        ("bert", "its query_prefix is 'query: ', not"),
    ],
)
def test_a_format_without_a_place_is_named(
    make_model: Callable[..., Path], tmp_path: Path, model_type: str, message: str
) -> None:
    if model_type == "bert":
        folder = make_model("bert", labels=1)
        reader = open_reader(folder, query_prefix="query: ")
    else:
        folder = make_language_model(tmp_path, model_type)
        reader = open_reader(folder)
    with pytest.raises(SpecError) as refused:
        reader.instructed("Find it.")
    assert message in str(refused.value)
    assert reader.instructed("") is reader
