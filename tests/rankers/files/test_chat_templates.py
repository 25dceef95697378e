"""Classifiers with a chat template have the scores of sentence-transformers' CrossEncoder, or are refused."""

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import CrossEncoderOptions
from farrank_rankers.files.answering_models import describe_prompt
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support import runtime_scores as of_exports
from support.exported_rankers import scores_of_fp32_exports
from support.language_models import KINDS, SIZES, write_json
from support.packed_backbones import stream_of
from support.tiny_tokenizers import answering, unsplit

MakeClassifier = Callable[..., Path]
# Earlier releases render no pair.
pytestmark = pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)

QUERIES = ["what is a query document?", "neural search engine", "why? ", "naïve café.", " yes", "'s"]
DOCUMENTS = [
    "A long document ranks: windows slide over text.",
    "hello world " * 60,
    "  café 😀 straße,\n\nparse command line arguments?",
    "\nyes\nno. ",
    "",
]
MESSAGE = '{%- set %s = messages | selectattr("role", "eq", "%s") | map(attribute="content") | first%s -%}\n'
TEXTS = "".join(MESSAGE.replace("%s", role, 2).replace("%s", "") for role in ("query", "document"))
INSTRUCTED = (
    MESSAGE.replace("%s", "instruction", 1)
    .replace("%s", "system", 1)
    .replace("%s", ' | default("Find passages that answer the query.")')
)
# As in Qwen3-Reranker's conversions.
QWEN = (
    f"{INSTRUCTED}{TEXTS}<|im_start|>user\nTask: {{{{ instruction }}}}\nQuery: {{{{ query }}}}\n"
    "Document: {{ document }}<|im_end|>\n{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# Every message with its role, contents as lists of parts.
TURNS = (
    "{{ bos_token }}{% for message in messages %}<eos>{{ message.role }}: "
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "<eos>\n{% endfor %}"
)
# Nothing after the document.
PLAIN = f"{TEXTS}Query: {{{{ query }}}}\nDocument: {{{{ document }}}}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MakeClassifier:
    """Write a random causal classifier with a real tokenizer of its kind."""

    def make(model_type: str = "qwen3", template: str | None = QWEN, labels: int = 1, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        gemma = model_type.startswith("gemma")
        tokenizer = unsplit() if gemma else answering()
        names = ("<bos>", "<eos>", "<pad>") if gemma else (None, "<|im_end|>", "<|endoftext|>")
        special = {
            f"{key}_token": name for key, name in zip(("bos", "eos", "pad"), names, strict=True) if name
        }
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        ids = {f"{key}_id": tokenizer.token_to_id(name) for key, name in special.items()}
        values = SIZES | {"vocab_size": tokenizer.get_vocab_size(), "num_labels": labels} | ids
        values |= KINDS.get(model_type, {}) | changes
        with torch.random.fork_rng():
            torch.manual_seed(7)
            config = AutoConfig.for_model(model_type, **values)
            model = AutoModelForSequenceClassification.from_config(config).eval()
        model.save_pretrained(folder)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder

    return make


def published(folder: Path, query: str, documents: Sequence[str] = DOCUMENTS, **asked: Any) -> list[float]:
    """Return CrossEncoder's logits, or with two labels the second minus the first."""
    model = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity())
    logits = torch.from_numpy(model.predict([(query, text) for text in documents], **asked))
    return (logits if logits.dim() == 1 else logits[:, 1] - logits[:, 0]).tolist()


def scores(folder: Path, query: str, documents: Sequence[str] = DOCUMENTS, **overrides: Any) -> list[float]:
    ranker = open_ranker(folder, family="longp", **overrides)
    return [each.score for each in ranker.score(query, documents)]


@pytest.mark.parametrize(
    ("model_type", "template", "labels"),
    [
        ("qwen3", QWEN, 1),
        ("qwen2", QWEN, 2),
        ("llama", QWEN, 1),
        ("mistral", QWEN, 1),
        ("gemma", TURNS, 1),
        ("qwen3", None, 1),  # pairs without a template, as in training with earlier releases
    ],
)
def test_scores_are_those_of_cross_encoder(
    made: MakeClassifier, model_type: str, template: str | None, labels: int
) -> None:
    folder = made(model_type, template, labels)
    found = []
    for query in QUERIES:
        found += scores(folder, query)
        assert found[-len(DOCUMENTS) :] == pytest.approx(published(folder, query), rel=0, abs=1e-5), query
    assert torch.tensor(found).std() > 0.1


def test_a_space_before_the_document(made: MakeClassifier) -> None:
    """It belongs to the document's first token; before an empty document it is a token of its own."""
    folder = made(template=PLAIN)
    for query in QUERIES:
        assert scores(folder, query) == pytest.approx(published(folder, query), rel=0, abs=1e-5)


def test_streams_have_the_same_scores(made: MakeClassifier) -> None:
    folder = made()
    ranker = open_ranker(folder, family="longp")
    reader = ranker.reader
    asked = reader.read_query(QUERIES[0])
    inputs = [reader.chunk_input(asked, reader.split(reader.read_document(text))[0]) for text in DOCUMENTS]
    with torch.inference_mode():
        rows = PackedEncoder(ranker.encoder, plain_attention)(stream_of(inputs))
    found = [float(row.vectors[0]) for row in rows]
    assert found == pytest.approx(published(folder, QUERIES[0]), rel=0, abs=1e-5)


def test_an_export_has_the_librarys_scores(made: MakeClassifier, tmp_path: Path) -> None:
    folder = made()
    expected = published(folder, of_exports.QUERY, of_exports.TEXTS)
    ranker = open_ranker(folder, family="longp", max_document_tokens=900)
    for found in scores_of_fp32_exports(ranker, tmp_path / "artifact").values():
        assert found == pytest.approx(expected, rel=0, abs=1e-5)


def test_padding_is_that_of_the_models_configuration(made: MakeClassifier, edit_json: Any) -> None:
    """A tokenizer's other padding would be taken for the last token of a text; a batch of one has none."""
    folder = made()
    expected = [published(folder, QUERIES[0], [text])[0] for text in DOCUMENTS]
    values = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", values | {"pad_token": "<|im_end|>"})
    assert scores(folder, QUERIES[0]) == pytest.approx(expected, rel=0, abs=1e-5)
    edit_json(folder / "config.json", pad_token_id=None)
    with pytest.raises(SourceError, match=r"config.json lacks pad_token_id, by which transformers finds"):
        open_reader(folder)


def test_a_prompt_is_the_system_message(made: MakeClassifier, tmp_path: Path) -> None:
    folder = made()
    CrossEncoder(
        str(folder), device="cpu", prompts={"law": "Find the law."}, default_prompt_name="law"
    ).save_pretrained(str(tmp_path / "saved"))
    found = scores(tmp_path / "saved", QUERIES[0])
    assert found == pytest.approx(published(tmp_path / "saved", QUERIES[0]), rel=0, abs=1e-5)
    assert found == pytest.approx(published(folder, QUERIES[0], prompt="Find the law."), rel=0, abs=1e-5)
    assert found != pytest.approx(scores(folder, QUERIES[0]), abs=1e-3)
    assert found == scores(folder, QUERIES[0], instruction="Find the law.")
    of_call = open_ranker(folder, family="longp").score(QUERIES[0], DOCUMENTS, instruction="Find the law.")
    assert [each.score for each in of_call] == found
    said = describe_prompt(open_reader(folder).spec)
    assert said is not None
    assert "{document}" in said.partition(" (read from the folder's chat template), instruction ")[0]
    options = open_reader(tmp_path / "saved").spec.options_as(CrossEncoderOptions)
    assert options.instruction == "Find the law."
    # A template with another text where there is a system message; it is not settable.
    written = made("gemma", TURNS)
    CrossEncoder(
        str(written), device="cpu", prompts={"law": "Find the law."}, default_prompt_name="law"
    ).save_pretrained(str(tmp_path / "turns"))
    expected = published(tmp_path / "turns", QUERIES[0])
    assert scores(tmp_path / "turns", QUERIES[0]) == pytest.approx(expected, rel=0, abs=1e-5)
    assert expected != pytest.approx(scores(written, QUERIES[0]), abs=1e-3)
    with pytest.raises(SpecError, match=r"the template has no {instruction} for it"):
        open_reader(written, instruction="Find the law.")


def test_settings_of_sentence_transformers(made: MakeClassifier, tmp_path: Path, edit_json: Any) -> None:
    """Its own files may add the turn of the answer, or leave out the template."""
    CrossEncoder(str(made()), device="cpu").save_pretrained(str(tmp_path))
    before = published(tmp_path, QUERIES[0])
    settings = tmp_path / "sentence_bert_config.json"
    edit_json(settings, processing_kwargs={"chat_template": {"add_generation_prompt": True}})
    expected = published(tmp_path, QUERIES[0])
    assert expected != pytest.approx(before, abs=1e-3)
    assert scores(tmp_path, QUERIES[0]) == pytest.approx(expected, rel=0, abs=1e-5)
    values = json.loads(settings.read_text())
    edit_json(settings, modality_config={"text": values["modality_config"]["text"]})
    expected = published(tmp_path, QUERIES[0])
    assert expected != pytest.approx(before, abs=1e-3)
    assert scores(tmp_path, QUERIES[0]) == pytest.approx(expected, rel=0, abs=1e-5)
    edit_json(settings, modality_config=["text"])
    with pytest.raises(SourceError, match=r"sentence_bert_config.json: modality_config is \['text'\]"):
        open_reader(tmp_path)


def test_the_best_window_counts_and_the_ranker_is_saved_with_its_template(
    made: MakeClassifier, tmp_path: Path
) -> None:
    folder = made()
    ranker = open_ranker(folder, window=24, stride=18)
    text = " ".join(f"{word} slides over text." for word in ("search", "neural", "query", "world") * 8)
    (scored,) = ranker.score(QUERIES[0], [text])
    assert len(scored.chunks) > 4
    first = scored.chunks[0]
    (expected,) = published(folder, QUERIES[0], [text[: first.end]])
    assert scored.chunk_scores[0] == pytest.approx(expected, rel=0, abs=1e-5)
    save_ranker(ranker, tmp_path / "artifact")
    again = open_ranker(tmp_path / "artifact")
    assert again.version == ranker.version
    assert [each.score for each in again.score(QUERIES[0], [text])] == [scored.score]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "{{ raise_exception('only user and assistant') }}",
            "refuses the roles query and document (only user",
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            "does not",
        ),
        (PLAIN.replace("{{ query }}", "{{ query | trim }}"), "changes query or document"),
        (f"{PLAIN}\nDoes it answer?", "can share a token"),
        (PLAIN.replace("Query: ", "<Query>"), "can share a token"),
        (f"{TEXTS}Document: {{{{ document }}}} Query: {{{{ query }}}}", "document before the query"),
        ("{{ 1 / 0 }}", "cannot be rendered: division by zero"),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused(
    made: MakeClassifier, template: str, said: str
) -> None:
    folder = made(template=template)
    with pytest.raises(SourceError) as refused:
        open_reader(folder)
    message = str(refused.value)
    assert said in message
    assert str(folder) in message
    assert "\n" not in message
    assert len(message) - len(str(folder)) <= 300


def test_several_templates_of_a_tokenizer_are_refused(made: MakeClassifier) -> None:
    folder = made(template=None)
    values = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(
        folder / "tokenizer_config.json",
        values | {"chat_template": [{"name": "default", "template": QWEN}]},
    )
    with pytest.raises(SourceError, match=r"several chat templates; write one to chat_template.jinja"):
        open_reader(folder)
