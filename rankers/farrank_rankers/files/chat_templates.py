"""Chat templates of published folders: rendered as transformers does, and read as a classifier's prompt.

sentence-transformers' CrossEncoder (from release 5.4) renders every pair with a folder's chat template, and
tokenizes the whole. Here the text around query and document is tokenized once; a template for which that
gives other tokens is refused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import DOCUMENT, INSTRUCTION, QUERY, CrossEncoderOptions
from farrank_rankers.files.saved_modules import MODULES, default_prompt
from farrank_rankers.json_values import read_json, read_text, short
from farrank_rankers.prompt import Prompt
from farrank_rankers.tokenizer import TextTokenizer, finished
from farrank_rankers.tokens import Role

Messages = Sequence[Mapping[str, Any]]

# The file with sentence-transformers' settings of a transformer, next to it.
SETTINGS = "sentence_bert_config.json"

# A template with one of these texts gets its contents as lists of parts; so sentence-transformers decides.
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")

# Not variables of a template.
_SIZES = frozenset({"padding", "truncation", "max_length", "return_tensors", "restore_suffix"})

# The beginnings and ends of texts that tokenizers may join with the text around them. A line break at the
# beginning is left out: after one of the template most tokenizers join the two.
_PROBES = ("word", "What?", "'s 7", "7", "(a).", "  two  ", "end.\n", "café", "日本", "?")


class Refused(Exception):
    """A template itself refuses the messages."""


def _refuse(message: str) -> None:
    raise Refused(message)


def rendered(
    template: str, messages: Messages, folder: Path, tokenizer: TextTokenizer, **variables: Any
) -> str:
    """Render as transformers does, in a sandbox for a folder's template.

    Raises: SourceError if it cannot be rendered; Refused.
    """
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    special = {
        name: token.get("content") if isinstance(token, Mapping) else token
        for name, token in tokenizer.files.config.items()
        if name.endswith("_token")
    }
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    given: dict[str, Any] = {"tools": None, "documents": None, **special, **variables}
    try:
        return environment.from_string(template).render(messages=messages, **given)
    except Refused:
        raise
    except Exception as error:  # a template is a program, and fails as programs do
        raise SourceError(f"{folder}: the chat template cannot be rendered: {error}") from error


def saved_template(folder: Path, tokenizer: TextTokenizer) -> str | None:
    """Find a folder's chat template; None also for several with names."""
    path = folder / "chat_template.jinja"
    template = read_text(path) if path.is_file() else tokenizer.files.config.get("chat_template")
    return template if isinstance(template, str) else None


def classifier_prompt(
    folder: Path, transformer: Path, tokenizer: TextTokenizer
) -> CrossEncoderOptions | None:
    """Read the prompt of a classifier from its chat template; None if its pairs have none.

    `transformer` is the folder's own, or one below it, with the template.
    The default prompt of sentence-transformers' files is the system message, which is settable as the
    instruction if the template only inserts it.
    Raises: SourceError naming the folder and why its template cannot be followed.
    """
    template = saved_template(transformer, tokenizer)
    settings = _settings(folder, transformer)
    modalities = settings.get("modality_config")
    if template is None and tokenizer.files.config.get("chat_template"):
        raise SourceError("this classifier has several chat templates; write one to chat_template.jinja")
    if template is None or (modalities is not None and "message" not in modalities):
        return None
    message = modalities.get("message") if modalities is not None else None
    form = message.get("format") if isinstance(message, Mapping) else None
    structured = any(each in template for each in _STRUCTURED) if form is None else form == "structured"
    processing = settings.get("processing_kwargs")
    variables = (processing or {}).get("chat_template") or {}
    given = {name: value for name, value in variables.items() if name not in _SIZES}

    def render(query: str, document: str, system: str | None) -> str:
        texts = {"system": system, "query": query, "document": document}
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if structured else text}
            for role, text in texts.items()
            if text is not None
        ]
        return rendered(template, messages, folder, tokenizer, **given)

    system = default_prompt(folder) or None
    try:
        whole = render(QUERY, DOCUMENT, system)
    except Refused as error:
        raise _not_for_pairs(f"refuses the roles query and document ({error!s:.60})") from error
    if whole.count(QUERY) != 1 or whole.count(DOCUMENT) != 1:
        raise _not_for_pairs("does not write the roles query and document, each once")
    if whole.index(DOCUMENT) < whole.index(QUERY):
        raise SourceError(
            "this classifier's chat template has the document before the query; serve it with "
            "sentence-transformers"
        )
    for probe in _PROBES:
        if render(probe, f"{probe}.", system) != _inserted(whole, probe, f"{probe}."):
            raise SourceError(
                "this classifier's chat template changes query or document (trims them, for example); "
                "change it so that it inserts them as they are, or serve it with sentence-transformers"
            )
    text, instruction = whole, ""
    try:
        settable = render(QUERY, DOCUMENT, INSTRUCTION)
    except Refused:
        settable = whole
    if settable.count(INSTRUCTION) == 1:
        before, behind = settable.split(INSTRUCTION)
        fits = whole.startswith(before) and whole.endswith(behind) and len(whole) > len(before + behind)
        if fits:
            text, instruction = settable, whole[len(before) : len(whole) - len(behind)]
    end = text.index(DOCUMENT) + len(DOCUMENT)
    parts = tuple(part for part in (text[:end], text[end:]) if part)
    try:
        options = CrossEncoderOptions(template=parts, instruction=instruction)
    except SpecError as error:
        raise SourceError(
            f"this classifier's chat template: {error}; serve it with sentence-transformers"
        ) from error
    _check_cuts(options, whole, tokenizer)
    return options


def _settings(folder: Path, transformer: Path) -> dict[str, Any]:
    """Read sentence-transformers' settings of the transformer, which it reads beside modules.json only."""
    path = transformer / SETTINGS
    if not (folder / MODULES).is_file() or not path.is_file():
        return {}
    values = read_json(path)
    for key in ("modality_config", "processing_kwargs"):
        if not isinstance(values.get(key, {}), Mapping):
            raise SourceError(f"{path}: {key} is {short(values[key])}; it must be an object")
    return values


def _not_for_pairs(reason: str) -> SourceError:
    return SourceError(
        f"this classifier's chat template {reason}; sentence-transformers refuses it, too: write the "
        "template of its training to chat_template.jinja, or delete it if there was none in training"
    )


def _inserted(whole: str, query: str, document: str) -> str:
    before, rest = whole.split(QUERY)
    between, behind = rest.split(DOCUMENT)
    return f"{before}{query}{between}{document}{behind}"


def _check_cuts(options: CrossEncoderOptions, whole: str, tokenizer: TextTokenizer) -> None:
    """Refuse a template whose own text can share a token with a query or document.

    No token crosses the words of a tokenizer; one that splits no words is only tried.
    Raises: SourceError naming the text.
    """
    prompt = Prompt.of(options, tokenizer)
    splits = len(set(tokenizer.tokenizer.encode("word two", add_special_tokens=False).word_ids)) > 1
    for probe in _PROBES:
        query = finished(prompt.query_steps(probe, 1000))
        document = tokenizer.read(probe, 1000, spaces=prompt.document_spaces)
        behind = query.ids[:0] if query.behind is None else query.behind
        asked = [(query.ids, Role.QUERY), (behind, Role.SPECIAL)]
        framed = prompt.frame.around(asked, [(document.ids, Role.DOCUMENT)])
        joint = tokenizer.tokenizer.encode(_inserted(whole, probe, probe), add_special_tokens=False)
        before, between, _ = (part.shape[1] for part in prompt.frame.parts)
        of_document = before + len(query) + len(behind) + between
        cuts = {before, of_document, of_document + len(document)} - {0, len(joint)}
        words = joint.word_ids
        if framed.input_ids.tolist() != joint.ids or (
            splits and any(words[cut - 1] is not None and words[cut - 1] == words[cut] for cut in cuts)
        ):
            raise SourceError(
                f"this classifier's chat template and a query or document such as {probe!r} can share a "
                "token, which windows of a document cannot keep; serve it with sentence-transformers"
            )
