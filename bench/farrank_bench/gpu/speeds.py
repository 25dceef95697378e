"""How fast packed models encode, what share of the device's peak that is, and how fast padded ones do."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from farrank_bench.contenders.rounds import Rounds, measure_rounds
from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.encoding import Form, speed_row, whole
from farrank_bench.gpu.flops import encoder_flops
from farrank_bench.gpu.inputs import full_documents, leading_tokens, mixed_documents, real_tokens
from farrank_bench.report import Row, at_least, not_measured, spread
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput

PACKED, SORTED, UNSORTED = "packed", "padded, sorted by length", "padded, as they come"

LEAST_SHARE = 0.55
LEAST_OF_FULL = 0.9
OVER_PADDED = 2.0

MODELS: Mapping[str, str] = {
    "parade-attn-bert": "PARADE Attn",
    "longp-jina": "JINA LongP",
    "longp-longformer": "Longformer LongP",
}


@dataclass(frozen=True, slots=True)
class Work:
    """The same inputs for all forms, and the operations that they need."""

    name: str
    inputs: Sequence[EncoderInput]
    flops: int


@dataclass(frozen=True, slots=True)
class Speeds:
    """What the forms made of a work; packed batches' `shares` of the device's peak, none if they failed."""

    work: Work
    forms: Mapping[str, Form]
    found: Rounds
    shares: Sequence[float]


def first_passages(bench: Bench) -> list[Row]:
    """BERT-base FirstP: full chunks, and mixed lengths. Raises: PartlyFailed."""
    ranker, documents = bench.model("firstp-bert"), bench.extent.documents
    full_work = work_of("full chunks", ranker, full_documents(ranker.reader, documents))
    mixed_work = work_of("mixed lengths", ranker, mixed_documents(ranker.reader, documents))
    attention = attention_row(bench, ranker)
    full, mixed = (measure(bench, ranker, work) for work in (full_work, mixed_work))
    what = "share of peak on mixed lengths over that on full chunks"
    ratios = [share / statistics.median(full.shares) for share in mixed.shares if full.shares]
    rows = [
        attention,
        *rows_of(full, share_aim=LEAST_SHARE),
        *rows_of(mixed, padded_aim=OVER_PADDED),
        _held(what, ratios, LEAST_OF_FULL),
    ]
    return whole(rows, full.found, mixed.found)


def full_documents_of(name: str, bench: Bench) -> list[Row]:
    """Full documents of another model. Raises: PartlyFailed."""
    ranker = bench.model(name)
    attention = attention_row(bench, ranker)
    work = work_of("full documents", ranker, full_documents(ranker.reader, bench.extent.documents))
    measured = measure(bench, ranker, work)
    return whole([attention, *rows_of(measured)], measured.found)


OF_FULL_DOCUMENTS = {name: partial(full_documents_of, name) for name in MODELS}


def work_of(name: str, ranker: Ranker, documents: Sequence[Sequence[EncoderInput]]) -> Work:
    """Put documents' inputs in a row and count what they need."""
    inputs = [item for document in documents for item in document]
    lengths = [real_tokens(item) for item in inputs]
    flops = encoder_flops(ranker.config, lengths, leading_tokens(inputs[0]))
    span = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else f"{max(lengths)}"
    count = f"{len(documents)} documents, {len(inputs)} pairs of {span} tokens"
    return Work(f"{name}: {count}", inputs, flops)


def attention_row(bench: Bench, ranker: Ranker) -> Row:
    """Say what attends in packed batches, and what in padded ones."""
    _, packed = bench.open(ranker, "packed")
    config = ranker.encoder.backbone.config
    padded = getattr(config, "_attn_implementation", None) or "the backbone's own"
    return Row("attention", f"{packed}; padded: {padded}")


def measure(bench: Bench, ranker: Ranker, work: Work) -> Speeds:
    """Let all forms encode the work in turns."""
    padded, _ = bench.open(ranker, "padded")
    packed, _ = bench.open(ranker, "packed")
    longest_first = sorted(work.inputs, key=lambda item: -item.tokens)
    forms = {
        PACKED: Form(packed, work.inputs, bench.extent.passes, padded=False, limit=bench.limit),
        SORTED: Form(padded, longest_first, bench.extent.passes, padded=True, limit=bench.limit),
    }
    if longest_first[0].tokens != longest_first[-1].tokens:
        forms[UNSORTED] = Form(padded, work.inputs, bench.extent.passes, padded=True, limit=bench.limit)
    found = measure_rounds(forms, bench.extent.repeats)
    peak = statistics.median(bench.ceilings.flops_per_s)
    of_input = work.flops / len(work.inputs)
    return Speeds(work, forms, found, [speed * of_input / peak for speed in found.speeds.get(PACKED, ())])


def rows_of(measured: Speeds, share_aim: float | None = None, padded_aim: float | None = None) -> list[Row]:
    """Speeds, the share of peak, and packed over padded; None where there is no aim."""
    found = measured.found
    rows = [Row(measured.work.name, f"{measured.work.flops / 1e12:.3g} TFLOP")]
    rows += [speed_row(name, form, found) for name, form in measured.forms.items()]
    rows.append(_held("share of the measured peak, packed", measured.shares, share_aim))
    for name in measured.forms:
        if name != PACKED:
            both = not {PACKED, name} & found.failed.keys()
            rows.append(_held(f"packed over {name}", found.ratios(PACKED, name) if both else [], padded_aim))
    return rows


def _held(what: str, values: Sequence[float], aim: float | None) -> Row:
    """Hold values to an aim, if there are any and it is one."""
    if not values:
        return not_measured(what, "a form failed", "" if aim is None else f"at least {aim:g}")
    return Row(what, spread(values, ".3f")) if aim is None else at_least(what, values, aim)


WRITTEN, COMPILED = "packed, as written", "packed, compiled"

COMPILED_MODELS: Mapping[str, str] = {
    "firstp-bert": "BERT",
    "firstp-deberta": "DeBERTa",
    "longp-longformer": "Longformer",
    "longp-bigbird": "BigBird",
}


def forms_of(name: str, bench: Bench) -> list[Row]:
    """Encode documents of mixed lengths in every form, in turns. Raises: PartlyFailed."""
    ranker = bench.model(name)
    documents = mixed_documents(ranker.reader, bench.extent.documents)
    inputs = [item for document in documents for item in document]
    longest_first = sorted(inputs, key=lambda item: -item.tokens)
    written, _ = bench.open(ranker, "packed")
    compiled, _ = bench.open(ranker, "packed", compile=True)
    padded, _ = bench.open(ranker, "padded")
    contenders = {
        WRITTEN: Form(written, inputs, bench.extent.passes, padded=False, limit=bench.limit),
        COMPILED: Form(compiled, inputs, bench.extent.passes, padded=False, limit=bench.limit),
        SORTED: Form(padded, longest_first, bench.extent.passes, padded=True, limit=bench.limit),
    }
    attention = attention_row(bench, ranker)
    found = measure_rounds(contenders, bench.extent.repeats)
    fastest = max(found.speeds, key=lambda form: statistics.median(found.speeds[form]), default="none")
    rows = [
        attention,
        *(speed_row(name, form, found) for name, form in contenders.items()),
        Row("fastest", fastest),
    ]
    return whole(rows, found)


FORMS = {name: partial(forms_of, name) for name in COMPILED_MODELS}
