"""Generative language models have the scores of their published code, run with transformers, to 1e-5."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.family import YesNoOptions
from farrank_rankers.files.answering_models import (
    BGE_RERANKER_V2_GEMMA,
    MXBAI_RERANK_V2,
    QWEN3_RERANKER,
    describe_prompt,
)
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import Role
from support.language_models import make_language_model, write_json
from support.packed_backbones import stream_of

MakeLanguageModel = Callable[..., Path]
Reference = Callable[[Path, str, Sequence[str]], list[float]]

QUERIES = ["what is a query document?", "neural search engine", "why? ", "naïve café.\n", "rank", " yes"]
DOCUMENTS = [
    "A long document ranks: windows slide over text.",
    "hello world " * 60,
    "  café 😀 straße,\n\nparse command line arguments?",
    "\nyes\nno",
    "",
]
CHAT_TEMPLATE = (
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first'
    ' | default("Find passages that answer the query.") -%}\n'
    '{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content")'
    " | first -%}\n"
    "<|im_start|>user\nTask: {{ instruction }}\nQuery: {{ query }}\nDocument: {{ document }}<|im_end|>\n"
    "<|im_start|>assistant\n\n"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MakeLanguageModel:
    def make(model_type: str, **changes: Any) -> Path:
        return make_language_model(tmp_path_factory.mktemp(model_type), model_type, **changes)

    return make


def last_logits(folder: Path, inputs: Sequence[Sequence[int]], tokenizer: Any) -> torch.Tensor:
    """Return transformers' logits at the last position, padded on the left. Shapes: -> (P, V)."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    padded = tokenizer.pad({"input_ids": [list(ids) for ids in inputs]}, return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = model(**padded).logits
    return logits[:, -1, :].float()


def opened_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, padding_side="left")


def qwen3_reranker(folder: Path, query: str, documents: Sequence[str]) -> list[float]:
    """Compute log-odds as in the model card of Qwen/Qwen3-Reranker-0.6B."""
    tokenizer = opened_tokenizer(folder)
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    around = [tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix)]
    pairs = [f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}" for document in documents]
    inputs = [around[0] + tokenizer(pair)["input_ids"] + around[1] for pair in pairs]
    scores = last_logits(folder, inputs, tokenizer)
    yes, no = (tokenizer.convert_tokens_to_ids(answer) for answer in ("yes", "no"))
    both = torch.stack([scores[:, no], scores[:, yes]], dim=1)
    found: list[float] = torch.logit(both.log_softmax(dim=1)[:, 1].double().exp()).tolist()
    return found


def mxbai_rerank_v2(folder: Path, query: str, documents: Sequence[str], instruction: str = "") -> list[float]:
    """Compute scores as in the package mxbai-rerank."""
    tokenizer = opened_tokenizer(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your "
        "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    asked = f"instruction: {instruction}\nquery: {query}" if instruction else f"query: {query}"
    end = [*ids("\n"), *ids(task), *ids("<|im_end|>\n<|im_start|>assistant\n")]
    inputs = [
        [*ids(prefix), *ids(asked), *ids("\n"), *ids(f"document: {document}"), *end] for document in documents
    ]
    logits = last_logits(folder, inputs, tokenizer)
    found: list[float] = (logits[:, ids("1")[0]] - logits[:, ids("0")[0]]).tolist()
    return found


def bge_reranker_v2_gemma(folder: Path, query: str, documents: Sequence[str]) -> list[float]:
    """Compute scores as in the package FlagEmbedding."""
    tokenizer = opened_tokenizer(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    task = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'."
    )
    start = [tokenizer.bos_token_id, *ids(f"A: {query}"), *ids("\n")]
    inputs = [[*start, *ids(f"B: {document}"), *ids("\n"), *ids(task)] for document in documents]
    found: list[float] = last_logits(folder, inputs, tokenizer)[:, ids("Yes")[0]].tolist()
    return found


PUBLISHED: list[tuple[str, dict[str, Any], Reference]] = [
    ("qwen3", {}, qwen3_reranker),
    ("qwen3", {"tie_word_embeddings": False}, qwen3_reranker),
    ("qwen2", {}, mxbai_rerank_v2),
    ("qwen2", {"tie_word_embeddings": True}, mxbai_rerank_v2),
    ("gemma", {}, bge_reranker_v2_gemma),
]


@pytest.mark.parametrize(("model_type", "changes", "published"), PUBLISHED)
def test_scores_of_whole_documents_are_the_published_ones(
    made: MakeLanguageModel, model_type: str, changes: dict[str, Any], published: Reference
) -> None:
    folder = made(model_type, **changes)
    ranker = open_ranker(folder, family="longp")
    for query in QUERIES:
        scored = ranker.score(query, DOCUMENTS)
        assert [len(each.chunks) for each in scored] == [1] * len(DOCUMENTS)
        found = [each.score for each in scored]
        assert found == pytest.approx(published(folder, query, DOCUMENTS), rel=0, abs=1e-5), query
        assert len({round(score, 4) for score in found}) == len(found)
        streams = packed_scores(ranker, query, DOCUMENTS)
        assert streams == pytest.approx(found, rel=0, abs=1e-5)


def packed_scores(ranker: Ranker, query: str, documents: Sequence[str]) -> list[float]:
    """Scores from one stream; each document is one chunk."""
    reader = ranker.reader
    asked = reader.read_query(query)
    chunks = [reader.split(reader.read_document(text))[0] for text in documents]
    inputs = [reader.chunk_input(asked, chunk) for chunk in chunks]
    with torch.inference_mode():
        rows = PackedEncoder(ranker.encoder, plain_attention)(stream_of(inputs))
    return [float(row.vectors[0]) for row in rows]


def test_an_instruction_stands_where_the_published_code_puts_it(
    made: MakeLanguageModel, tmp_path: Path
) -> None:
    folder = made("qwen2")
    ranker = open_ranker(folder, family="longp", instruction="Find the line that answers.")
    expected = mxbai_rerank_v2(folder, QUERIES[0], DOCUMENTS, "Find the line that answers.")
    found = [each.score for each in ranker.score(QUERIES[0], DOCUMENTS)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)
    save_ranker(ranker, tmp_path / "artifact")
    again = open_ranker(tmp_path / "artifact")
    assert again.version == ranker.version != open_ranker(folder, family="longp").version
    assert [each.score for each in again.score(QUERIES[0], DOCUMENTS)] == found


@pytest.mark.parametrize(("model_type", "changes", "published"), PUBLISHED[::2])
def test_the_best_window_counts_and_is_named(
    made: MakeLanguageModel, model_type: str, changes: dict[str, Any], published: Reference
) -> None:
    folder = made(model_type, **changes)
    ranker = open_ranker(folder, window=24, stride=18)
    text = " ".join(f"{word} slides over text." for word in ("search", "neural", "query", "world") * 8)
    (scored,) = ranker.score(QUERIES[0], [text])
    assert len(scored.chunks) > 4
    assert scored.score == max(scored.chunk_scores) == scored.chunk_scores[scored.deciding]
    reader = ranker.reader
    for chunk, score in zip(scored.chunks, scored.chunk_scores, strict=True):
        passage = text[chunk.start : chunk.end]
        # With its context in the prompt: a text that begins inside a word or without its space has other
        # tokens alone.
        if reader.read_document(passage.removeprefix(" ")).ids.tolist() == chunk.ids.tolist():
            (expected,) = published(folder, QUERIES[0], [passage.removeprefix(" ")])
            assert score == pytest.approx(expected, rel=0, abs=1e-5)
            break
    else:
        pytest.fail("no window could be compared")


def test_soft_caps_and_near_attention_of_gemma_2_by_sentence_transformers_files(
    made: MakeLanguageModel,
) -> None:
    """A folder with a chat template and a LogitScore has all the facts of a preset."""
    folder = made("gemma2")
    tokenizer = opened_tokenizer(folder)
    template = CHAT_TEMPLATE.replace("<|im_start|>", "<bos>").replace("<|im_end|>", "<eos>")
    (folder / "chat_template.jinja").write_text(template)
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.base.modules.transformer.Transformer",
        },
        {
            "idx": 1,
            "name": "1",
            "path": "1_LogitScore",
            "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
        },
    ]
    write_json(folder / "modules.json", modules)
    yes, no = (tokenizer.convert_tokens_to_ids(answer) for answer in ("▁yes", "No"))
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": yes, "false_token_id": no})
    ranker = open_ranker(folder, family="longp")
    assert ranker.spec.options == YesNoOptions(
        template=(
            "<bos>user\nTask: {instruction}\nQuery: {query}\nDocument: {document}",
            "<eos>\n<bos>assistant\n",
        ),
        instruction="Find passages that answer the query.",
        yes="▁yes",
        no="No",
        aggregation="first",
    )
    texts = [
        f"<bos>user\nTask: Find passages that answer the query.\nQuery: {QUERIES[0]}\nDocument: {document}"
        "<eos>\n<bos>assistant\n"
        for document in DOCUMENTS
    ]
    inputs = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    logits = last_logits(folder, inputs, tokenizer)
    expected = (logits[:, yes] - logits[:, no]).tolist()
    found = [each.score for each in ranker.score(QUERIES[0], DOCUMENTS)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)
    assert packed_scores(ranker, QUERIES[0], DOCUMENTS) == pytest.approx(expected, rel=0, abs=1e-5)
    assert logits.abs().max() <= 3.0
    # Its prompts have an instruction, and one logit answers.
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"law": "Find the law."}, "default_prompt_name": "law"},
    )
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": yes, "false_token_id": None})
    options = open_reader(folder).spec.options_as(YesNoOptions)
    assert (options.instruction, options.yes, options.no) == ("Find the law.", "▁yes", None)
    alone = open_ranker(folder, family="longp", instruction="Find passages that answer the query.")
    assert [each.score for each in alone.score(QUERIES[0], DOCUMENTS)] == pytest.approx(
        logits[:, yes].tolist(), rel=0, abs=1e-5
    )


def test_presets_follow_the_model_type_and_a_chat_template_wins(made: MakeLanguageModel) -> None:
    for model_type, preset in (
        ("qwen3", QWEN3_RERANKER),
        ("qwen2", MXBAI_RERANK_V2),
        ("gemma", BGE_RERANKER_V2_GEMMA),
    ):
        reader = open_reader(made(model_type))
        assert reader.spec.family == "yes-no"
        assert reader.spec.options == preset
        assert reader.spec.chunking.kind == "sliding"
    folder = made("qwen3")
    config = folder / "tokenizer_config.json"
    values = json.loads(config.read_text())
    write_json(config, values | {"chat_template": CHAT_TEMPLATE})
    options = open_reader(folder).spec.options_as(YesNoOptions)
    assert options.template[0].startswith("<|im_start|>user\nTask: {instruction}")
    assert (options.yes, options.no) == ("yes", "no")
    # A chat's usual template does not mention queries and documents.
    write_json(config, values | {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    assert open_reader(folder).spec.options == QWEN3_RERANKER


def test_an_instruction_may_hold_any_words(made: MakeLanguageModel) -> None:
    """A placeholder's name in it is plain text, and appears where the instruction does."""
    instruction = "Compare {query} with {document}, as {instruction} says."
    reader = open_reader(made("qwen3"), instruction=instruction)
    query = reader.read_query("what ranks?")
    item = reader.chunk_input(query, reader.split(reader.read_document("chunks"))[0])
    whole = reader.tokenizer.tokenizer.decode(item.input_ids.tolist(), skip_special_tokens=False)
    assert f"<Instruct>: {instruction}\n<Query>: what ranks?\n<Document>: chunks<|im_end|>" in whole


@pytest.mark.parametrize(
    "refuses",
    [
        "{{ raise_exception('only user and assistant') }}",
        "{% for m in messages %}{% break %}{% endfor %}",
    ],
)
def test_a_chats_template_that_refuses_pairs_says_nothing(made: MakeLanguageModel, refuses: str) -> None:
    folder = made("qwen3")
    (folder / "chat_template.jinja").write_text(f"{{# a query, a document #}}{refuses}")
    assert open_reader(folder).spec.options == QWEN3_RERANKER


def test_a_template_without_room_for_an_instruction(made: MakeLanguageModel) -> None:
    folder = made("qwen3")
    takes_none = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    pair = "Q: {{ messages[0].content }} D: {{ messages[1].content }}\n{# query, document #}"
    (folder / "chat_template.jinja").write_text(takes_none + pair)
    options = open_reader(folder).spec.options_as(YesNoOptions)
    assert (options.template, options.instruction) == (("Q: {query} D: {document}", "\n"), "")


@pytest.mark.parametrize(
    ("file", "held", "said"),
    [
        ("chat_template.jinja", "{# query, document #}{{ 1 / 0 }}", "cannot be rendered: division by zero"),
        ("chat_template.jinja", "{# query, document #}{{ 1 + 'a' }}", "cannot be rendered: unsupported"),
        ("chat_template.jinja", "{# query, document #}{% if %}", "cannot be rendered: "),
        ("modules.json", [{"type": "x.LogitScore"}], "must list modules with type and path"),
        ("1_LogitScore/config.json", {"true_token_id": 2**40}, "the tokenizer has no such token"),
        ("1_LogitScore/config.json", {"true_token_id": True}, "true_token_id is True; it must be a whole"),
        ("1_LogitScore/config.json", {}, "lacks true_token_id"),
        (
            "config_sentence_transformers.json",
            {"prompts": ["find it"], "default_prompt_name": "a"},
            "prompts is ['find it']; it must be",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"law": "find it"}, "default_prompt_name": "web"},
            "default_prompt_name is 'web'; prompts has law",
        ),
    ],
)
def test_a_damaged_file_is_named(made: MakeLanguageModel, file: str, held: Any, said: str) -> None:
    folder = made("qwen3")
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 5})
    write_json(
        folder / "modules.json",
        [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}],
    )
    (folder / file).write_text(held if isinstance(held, str) else json.dumps(held))
    with pytest.raises(SourceError) as refused:
        open_reader(folder)
    assert said in str(refused.value)
    assert str(folder) in str(refused.value)


def test_only_the_answers_rows_are_kept(made: MakeLanguageModel) -> None:
    ranker = open_ranker(made("qwen2"))
    names = {name: tuple(weight.shape) for name, weight in ranker.encoder.named_parameters()}
    assert names["answers.weight"] == (2, 32)
    assert not [name for name in names if "lm_head" in name]
    assert open_ranker(made("gemma")).encoder.get_parameter("answers.weight").shape == (1, 32)


def test_an_input_is_the_template_with_its_texts_and_roles(made: MakeLanguageModel) -> None:
    reader = open_reader(made("qwen3"), max_query_tokens=40)
    tokenizer = reader.tokenizer.tokenizer
    query = reader.read_query("what is a query document?")
    text = "windows slide over text. " * 40
    document = reader.read_document(text)
    chunks = reader.split(document)
    item = reader.chunk_input(query, chunks[0])
    whole = tokenizer.decode(item.input_ids.tolist(), skip_special_tokens=False)
    assert "<Query>: what is a query document?\n<Document>: windows slide" in whole
    assert whole.startswith("<|im_start|>system\nJudge")
    assert whole.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    of_document = item.input_ids[item.roles == Role.DOCUMENT]
    assert of_document.tolist() == chunks[0].ids.tolist()
    assert text[chunks[0].start : chunks[0].end] == tokenizer.decode(of_document.tolist()).removeprefix(" ")
    # The question mark and the line's end are one token, which belongs to the query.
    asked = item.input_ids[item.roles == Role.QUERY]
    assert tokenizer.decode(asked.tolist()) == " what is a query document?\n"
    assert query.ends[-1] == len("what is a query document?")


def test_a_long_query_is_cut_and_the_template_stays(made: MakeLanguageModel) -> None:
    reader = open_reader(made("qwen3"), max_query_tokens=5)
    query = reader.read_query("search engine " * 10)
    assert len(query) == 5
    assert query.tokens_cut == query.total_tokens - 5 > 0  # type: ignore[operator]
    item = reader.chunk_input(query, reader.split(reader.read_document("hello world"))[0])
    text = reader.tokenizer.tokenizer.decode(item.input_ids.tolist(), skip_special_tokens=False)
    assert "\n<Document>: hello world<|im_end|>\n<|im_start|>assistant\n" in text
    assert item.tokens <= reader.max_input_tokens


def test_a_window_that_leaves_no_room_is_refused_with_the_sum(made: MakeLanguageModel) -> None:
    folder = made("qwen3", max_position_embeddings=512)
    open_ranker(folder)
    with pytest.raises(SpecError, match="would exceed the 512 positions"):
        open_reader(folder, window=512)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": ["{query}"]}, "{document} 0 times"),
        ({"template": ["{query} {query} {document}"]}, "{query} 2 times"),
        ({"template": ["{document}", "{query}"]}, "before {query}"),
        ({"template": ["{query} {document}."]}, "after {document} in the same part"),
        ({"template": ["{query} {instruction} {document}"]}, "after {query}"),
        ({"template": ["{query} {document}"], "instruction": "Find it."}, "no {instruction}"),
        ({"template": ["{instruction} {query} {document}"], "instruction": ""}, "instruction is empty"),
        ({"yes": "no"}, "two tokens"),
        ({"yes": "yes indeed"}, "tokens; it must be one"),
    ],
)
def test_impossible_prompts_are_refused(
    made: MakeLanguageModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        new_ranker("yes-no", made("qwen3"), options=options)
    assert message in str(refused.value)


OWN_TEMPLATE = "<|im_start|>user\n{instruction}\nQuestion: {query}\nText: {document}<|im_end|>\nRelevant:"


@pytest.mark.parametrize("answers", [("1", "0"), ("1",)])
def test_a_prompt_that_is_set_counts_instead_of_the_preset(
    made: MakeLanguageModel, tmp_path: Path, answers: tuple[str, ...]
) -> None:
    folder = made("qwen3")
    instruction = "Find the law."
    ranker = open_ranker(
        folder, family="longp", template=OWN_TEMPLATE, answers=answers, instruction=instruction
    )
    tokenizer = opened_tokenizer(folder)
    texts = [
        OWN_TEMPLATE.format(instruction=instruction, query=QUERIES[0], document=document)
        for document in DOCUMENTS
    ]
    logits = last_logits(
        folder, [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts], tokenizer
    )
    columns = [logits[:, tokenizer.convert_tokens_to_ids(answer)] for answer in answers]
    expected = (columns[0] - columns[1] if len(columns) > 1 else columns[0]).tolist()
    found = [each.score for each in ranker.score(QUERIES[0], DOCUMENTS)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)
    # An artifact keeps the prompt, and takes another.
    save_ranker(ranker, tmp_path / "artifact")
    assert open_reader(tmp_path / "artifact").spec.options == ranker.spec.options
    again = open_ranker(tmp_path / "artifact", template="{query}{document}")
    assert again.spec.options_as(YesNoOptions).template == ("{query}{document}",)
    assert again.spec.options_as(YesNoOptions).instruction == ""


def test_the_presets_template_as_one_text_has_the_same_tokens(made: MakeLanguageModel) -> None:
    folder = made("qwen3")

    def tokens(reader: Reader) -> list[int]:
        chunk = reader.split(reader.read_document(DOCUMENTS[0]))[0]
        ids: list[int] = reader.chunk_input(reader.read_query(QUERIES[0]), chunk).input_ids.tolist()
        return ids

    preset = open_reader(folder)
    assert tokens(open_reader(folder, template="".join(QWEN3_RERANKER.template))) == tokens(preset)


def test_a_language_model_says_where_each_part_of_its_prompt_comes_from(
    made: MakeLanguageModel, tmp_path: Path
) -> None:
    folder = made("qwen3")
    qwen3 = "(assumed: Qwen3-Reranker's, by model_type qwen3)"
    said = describe_prompt(open_reader(folder).spec)
    assert said is not None
    assert said.startswith('template "<|im_start|>system\\nJudge whether the Document')
    assert said.endswith(
        f' {qwen3}, answers yes and no {qwen3}, instruction "{QWEN3_RERANKER.instruction}" {qwen3}'
    )
    save_ranker(open_ranker(folder), tmp_path / "artifact")
    assert describe_prompt(open_reader(tmp_path / "artifact").spec) == said
    said = describe_prompt(open_reader(folder, answers=("1",), instruction="Find it.").spec)
    assert said is not None
    assert said.endswith(f'{qwen3}, answers 1 (configured), instruction "Find it." (configured)')
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    write_json(
        folder / "modules.json",
        [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}],
    )
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 5})
    said = describe_prompt(open_reader(folder).spec)
    assert said is not None
    read = "(read from the folder's chat template)"
    assert f" {read}, answers " in said
    assert " (read from 1_LogitScore/config.json), instruction " in said
    assert said.endswith(f'"Find passages that answer the query." {read}')
    prompts = {"prompts": {"law": "Find the law."}, "default_prompt_name": "law"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    said = describe_prompt(open_reader(folder).spec)
    assert said is not None
    assert said.endswith('"Find the law." (read from config_sentence_transformers.json)')
    said = describe_prompt(open_reader(made("qwen2")).spec)
    assert said is not None
    assert said.endswith("answers 1 and 0 (assumed: mxbai-rerank-v2's, by model_type qwen2), no instruction")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"template": "{query}"}, "template has {document} 0 times"),
        ({"template": "{document}{query}"}, "template has {document} before {query}"),
        ({"template": "{query}{document}", "instruction": "Find it."}, "the template has no {instruction}"),
        ({"answers": ("yes indeed",)}, "answers[0] is 'yes indeed', which is"),
        ({"answers": ("1", "no such")}, "answers[1] is 'no such', which is"),
    ],
)
def test_a_prompt_that_is_set_wrongly_is_refused_by_its_field(
    made: MakeLanguageModel, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        open_reader(made("qwen3"), **overrides)
    assert message in str(refused.value)


def test_a_template_serves_a_folder_without_one(made: MakeLanguageModel) -> None:
    folder = made("gemma2")
    write_json(
        folder / "modules.json",
        [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}],
    )
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 5})
    reader = open_reader(folder, template="<bos>Q: {query}\nD: {document}\nA:")
    assert reader.spec.options_as(YesNoOptions).template == ("<bos>Q: {query}\nD: {document}", "\nA:")
    said = describe_prompt(reader.spec)
    assert said is not None
    assert said.startswith('template "<bos>Q: {query}\\nD: {document}\\nA:" (configured), answers ')


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "phi3", "gemma2", "gemma3_text", "olmo2", "smollm3", "qwen3"]
)
def test_any_language_model_answers_a_prompt_that_is_set(made: MakeLanguageModel, model_type: str) -> None:
    """Without a preset, a template and answers make it a ranker, with transformers' logits."""
    folder = made(model_type)
    gemma = model_type.startswith("gemma")
    start, end = ("<bos>", "<eos>") if gemma else ("<|im_start|>", "<|im_end|>")
    yes, no = ("Yes", "No") if gemma else ("yes", "no")
    before, behind = start + "Q: {query}\nD: {document}", f"{end}\nA:"
    ranker = open_ranker(folder, family="longp", template=before + behind, answers=(yes, no))
    tokenizer = opened_tokenizer(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    inputs = [ids(before.format(query=QUERIES[0], document=text)) + ids(behind) for text in DOCUMENTS]
    logits = last_logits(folder, inputs, tokenizer)
    expected = (logits[:, ids(yes)[0]] - logits[:, ids(no)[0]]).tolist()
    assert max(expected) - min(expected) > 0.1
    found = [each.score for each in ranker.score(QUERIES[0], DOCUMENTS)]
    assert found == pytest.approx(expected, rel=0, abs=1e-5)


@pytest.mark.parametrize(
    ("configured", "said"),
    [
        ({}, "set rankers.NAME.template, a text with {query} and {document}, and rankers.NAME.answers, one"),
        ({"answers": ("yes", "no")}, "set rankers.NAME.template, a text with {query} and {document}"),
        ({"template": "Q: {query}\nD: {document}"}, "set rankers.NAME.answers, one or two tokens"),
    ],
)
def test_a_language_model_without_a_prompt_is_refused(
    made: MakeLanguageModel, configured: dict[str, Any], said: str
) -> None:
    folder = made("llama")
    with pytest.raises(SourceError) as refused:
        open_reader(folder, **configured)
    message = str(refused.value).removeprefix(str(folder))
    assert message.startswith(" is a language model without a known prompt (llama): ")
    assert f"has one; {said}" in message
    assert "\n" not in message
    assert len(message) <= 300


def test_a_folder_that_names_its_answers_alone_needs_a_template(made: MakeLanguageModel) -> None:
    folder = made("gemma2")
    write_json(
        folder / "modules.json",
        [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}],
    )
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 5})
    with pytest.raises(SourceError, match=r"has one; set rankers\.NAME\.template, a text with .*}$"):
        open_reader(folder)
    with pytest.raises(SpecError, match="instruction"):
        open_reader(made("gemma"), instruction="Find it.")


def test_logits_with_a_bias_are_refused(made: MakeLanguageModel) -> None:
    with pytest.raises(SourceError, match=r"lm_head\.bias is among the weights"):
        open_ranker(made("phi"), template="Q: {query}\nD: {document}", answers=("yes", "no"))


def test_a_checkpoint_without_its_output_embedding_is_refused(made: MakeLanguageModel) -> None:
    folder = made("qwen2")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"no weights for encoder\.answers\.weight"):
        open_ranker(folder)
