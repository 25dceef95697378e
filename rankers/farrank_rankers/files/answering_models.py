"""Prompts of published language models that answer, and the tokens of their answers.

A folder defines them in a chat template with the roles query and document and in sentence-transformers'
files; else the preset of its architecture does. Nothing here imports torch.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError
from farrank_rankers.family import DOCUMENT, INSTRUCTION, QUERY, CrossEncoderOptions, YesNoOptions
from farrank_rankers.files.chat_templates import Refused, rendered, saved_template
from farrank_rankers.files.saved_modules import CONFIG, MODULES, default_prompt, kind_of, listed_modules
from farrank_rankers.json_values import read_json, read_value
from farrank_rankers.prompt import check_answer
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import TextTokenizer

# Qwen/Qwen3-Reranker-0.6B, -4B and -8B: the prompt of their model cards.
QWEN3_RERANKER = YesNoOptions(
    template=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)

# mixedbread-ai/mxbai-rerank-base-v2 and -large-v2: the prompt of the package mxbai-rerank.
MXBAI_RERANK_V2 = YesNoOptions(
    template=(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        "instruction: {instruction}\nquery: {query}",
        "\n",
        "document: {document}",
        "\n",
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your "
        "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    yes="1",
    no="0",
)

# BAAI/bge-reranker-v2-gemma: the prompt of the package FlagEmbedding. Its score is the logit of yes alone.
BGE_RERANKER_V2_GEMMA = YesNoOptions(
    template=(
        "<bos>",
        "A: {query}",
        "\n",
        "B: {document}",
        "\n",
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'.",
    ),
    yes="Yes",
    no=None,
)

# By transformers' model_type.
PRESETS: Mapping[str, YesNoOptions] = {
    "qwen3": QWEN3_RERANKER,
    "qwen2": MXBAI_RERANK_V2,
    "gemma": BGE_RERANKER_V2_GEMMA,
}
_PRESET_OF = {"qwen3": "Qwen3-Reranker", "qwen2": "mxbai-rerank-v2", "gemma": "bge-reranker-v2-gemma"}

LOGIT_SCORE = "LogitScore"


def answers_by_logit(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder has a language model; of several modules, whether it was published to answer."""
    if (folder / MODULES).is_file():
        return _logit_score(folder) is not None
    return any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or [])


@dataclass(frozen=True, slots=True)
class FoundPrompt:
    """A model's prompt and answers; `origins` says by part whether it was read, and where, or assumed."""

    options: YesNoOptions
    origins: Mapping[str, str]


def find_prompt(
    folder: Path, config: Mapping[str, Any], tokenizer: TextTokenizer, configured: Collection[str] = ()
) -> FoundPrompt:
    """Find a model's prompt and answers in its folder and its preset.

    `configured` are the parts that the caller has, which the folder need not have.
    Raises: SourceError naming the damaged file, or the part that nobody has.
    """
    model_type = str(config.get("model_type"))
    preset = PRESETS.get(model_type)
    origins: dict[str, str] = {}
    if preset is not None:
        assumed = f"assumed: {_PRESET_OF[model_type]}'s, by model_type {model_type}"
        origins = dict.fromkeys(PROMPT_PARTS, assumed)
    options, template = preset, _chat_template(folder, tokenizer)
    if template is not None:
        options = _of_chat_template(template, preset, folder, tokenizer)
        if options is not preset:
            origins |= dict.fromkeys(("template", "instruction"), "read from the folder's chat template")
    options = options or YesNoOptions()
    if (folder / MODULES).is_file() and (module := _logit_score(folder)) is not None:
        path = folder / str(module["path"]) / "config.json"
        values = read_json(path)
        yes = _token(tokenizer, values, "true_token_id", path)
        if yes is None:
            raise SourceError(f"{path} lacks true_token_id")
        options = replace(options, yes=yes, no=_token(tokenizer, values, "false_token_id", path))
        origins["answers"] = f"read from {path.relative_to(folder)}"
    instruction = default_prompt(folder)
    if instruction and options.takes_instruction:
        options = replace(options, instruction=instruction)
        origins["instruction"] = f"read from {CONFIG}"
    needed = {"template": f"rankers.NAME.template, a text with {QUERY} and {DOCUMENT}"}
    needed["answers"] = "rankers.NAME.answers, one or two tokens"
    missing = [how for part, how in needed.items() if part not in origins and part not in configured]
    if missing:
        raise SourceError(
            f"{folder} is a language model without a known prompt ({model_type[:30]}): neither a chat "
            f"template of query and document nor a preset ({', '.join(PRESETS)}) has one; "
            f"set {', and '.join(missing)}"
        )
    return FoundPrompt(options, origins)


PROMPT_PARTS = ("template", "answers", "instruction")


def change_prompt(
    options: YesNoOptions, changes: Mapping[str, Any], tokenizer: TextTokenizer
) -> YesNoOptions:
    """Set a prompt's `template` (one text), `answers` (yes, and no if it counts) or `instruction`.

    The text after the document is tokenized separately. A template without a place for an instruction has
    none. Raises: SpecError naming the field and its problem.
    """
    given = dict(changes)
    if (template := given.pop("template", None)) is not None:
        end = template.find(DOCUMENT) + len(DOCUMENT) if DOCUMENT in template else len(template)
        given["template"] = tuple(part for part in (template[:end], template[end:]) if part)
        if INSTRUCTION not in template:
            given.setdefault("instruction", "")
    if (answers := given.pop("answers", None)) is not None:
        for place, answer in enumerate(answers):
            check_answer(tokenizer, f"answers[{place}]", answer)
        given["yes"], given["no"] = answers if len(answers) > 1 else (*answers, None)
    return replace(options, **given)


def describe_prompt(spec: RankerSpec) -> str | None:
    """Describe a ranker's prompt and where it comes from, in a line for people; None if it has none."""
    options = spec.options
    if not (isinstance(options, CrossEncoderOptions) and options.template):
        return None
    origin = {part: f"({spec.provenance.get(f'prompt_{part}', 'as saved')})" for part in PROMPT_PARTS}
    instruction = f"instruction {json.dumps(options.instruction, ensure_ascii=False)} {origin['instruction']}"
    if not options.instruction:
        instruction = "no instruction"
    answers = ""
    if isinstance(options, YesNoOptions):
        both = " and ".join(answer for answer in (options.yes, options.no) if answer is not None)
        answers = f"answers {both} {origin['answers']}, "
    template = json.dumps("".join(options.template), ensure_ascii=False)
    return f"template {template} {origin['template']}, {answers}{instruction}"


def _logit_score(folder: Path) -> dict[str, Any] | None:
    return next((module for module in listed_modules(folder) if kind_of(module) == LOGIT_SCORE), None)


def _token(tokenizer: TextTokenizer, values: Mapping[str, Any], key: str, path: Path) -> str | None:
    """Read a token's id and give its name. Raises: SourceError naming file and key."""
    number: int | None = read_value(int | None, values.get(key), f"{path}: {key}", SourceError)
    if number is None:
        return None
    # The library has ids of 32 bits.
    token = tokenizer.tokenizer.id_to_token(number) if 0 <= number < 2**32 else None
    if token is None:
        raise SourceError(f"{path}: {key} is {number}; the tokenizer has no such token")
    return token


def _chat_template(folder: Path, tokenizer: TextTokenizer) -> str | None:
    """Find a template for a query and a document; a template for chats has neither."""
    template = saved_template(folder, tokenizer)
    is_pairs = template is not None and "query" in template and "document" in template
    return template if is_pairs else None


def _of_chat_template(
    template: str, preset: YesNoOptions | None, folder: Path, tokenizer: TextTokenizer
) -> YesNoOptions | None:
    """Render a chat template around placeholders; the text after the document is tokenized separately.

    Its default instruction is the one that it writes without a system message.
    Raises: SourceError if it cannot be rendered.
    """
    try:
        bare = _rendered(template, None, folder, tokenizer)
    except Refused:
        return preset  # it is for chats, and has the words for another reason
    if bare.count(QUERY) != 1 or bare.count(DOCUMENT) != 1:
        return preset  # the same
    try:
        instructed = _rendered(template, INSTRUCTION, folder, tokenizer)
    except Refused:
        instructed = bare  # it has no instruction
    instruction = ""
    if instructed.count(INSTRUCTION) == 1:
        before, behind = instructed.split(INSTRUCTION)
        if bare.startswith(before) and bare.endswith(behind) and len(bare) >= len(before) + len(behind):
            instruction = bare[len(before) : len(bare) - len(behind)]
    whole = instructed if instruction else bare
    end = whole.index(DOCUMENT) + len(DOCUMENT)
    parts = tuple(part for part in (whole[:end], whole[end:]) if part)
    answers = preset or YesNoOptions()
    return YesNoOptions(template=parts, instruction=instruction, yes=answers.yes, no=answers.no)


def _rendered(template: str, system: str | None, folder: Path, tokenizer: TextTokenizer) -> str:
    """Render a template around placeholders. Raises: SourceError if it cannot be rendered; Refused."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "query", "content": QUERY}, {"role": "document", "content": DOCUMENT}]
    return rendered(template, messages, folder, tokenizer, add_generation_prompt=True)
