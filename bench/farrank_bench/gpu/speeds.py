"""How fast packed models encode, what share of the device's peak that is, and how fast padded ones do."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.flops import encoder_flops
from farrank_bench.gpu.inputs import full_documents, leading_tokens, mixed_documents, real_tokens
from farrank_bench.offline import Alone, longest_first
from farrank_bench.report import Row, at_least
from farrank_bench.rounds import Rounds, measure_rounds, whole
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Packing

PACKED, SORTED, UNSORTED = "packed", "padded, sorted by length", "padded, as they come"
WRITTEN, COMPILED = "packed, as written", "packed, compiled"

LEAST_SHARE = 0.55
LEAST_OF_FULL = 0.9
OVER_PADDED = 2.0


def first_passages(bench: Bench) -> list[Row]:
    """BERT-base FirstP: full chunks, and mixed lengths. Raises: PartlyFailed."""
    ranker, documents = bench.model("firstp-bert"), bench.extent.documents
    full = measure(
        bench, ranker, "full chunks", full_documents(ranker.reader, documents), share_aim=LEAST_SHARE
    )
    mixed = measure(
        bench, ranker, "mixed lengths", mixed_documents(ranker.reader, documents), padded_aim=OVER_PADDED
    )
    what = "share of peak on mixed lengths over that on full chunks"
    ratios = [share / statistics.median(full.shares) for share in mixed.shares if full.shares]
    missing = "" if ratios else "a form failed"
    ratio = at_least(what, ratios, LEAST_OF_FULL, missing=missing)
    return whole([attention_row(bench, ranker), *full.rows, *mixed.rows, ratio], full.found, mixed.found)


def full_documents_of(name: str, bench: Bench) -> list[Row]:
    """Full documents of another model. Raises: PartlyFailed."""
    ranker = bench.model(name)
    documents = full_documents(ranker.reader, bench.extent.documents)
    measured = measure(bench, ranker, "full documents", documents)
    return whole([attention_row(bench, ranker), *measured.rows], measured.found)


def forms_of(name: str, bench: Bench) -> list[Row]:
    """Encode documents of mixed lengths in every form, in turns. Raises: PartlyFailed."""
    ranker = bench.model(name)
    documents = mixed_documents(ranker.reader, bench.extent.documents)
    inputs = [item for document in documents for item in document]
    rows, found = in_turns(bench, ranker, inputs, (WRITTEN, COMPILED, SORTED))
    fastest = max(found.speeds, key=lambda form: statistics.median(found.speeds[form]), default="none")
    return whole([attention_row(bench, ranker), *rows, Row("fastest", fastest)], found)


def attention_row(bench: Bench, ranker: Ranker) -> Row:
    """Say what attends in packed batches, and what in padded ones."""
    _, packed = bench.open(ranker, "packed")
    config = ranker.encoder.backbone.config
    padded = getattr(config, "_attn_implementation", None) or "the backbone's own"
    return Row("attention", f"{packed}; padded: {padded}")


@dataclass(frozen=True, slots=True)
class Speeds:
    """What the forms made of the same inputs; packed batches' `shares` of the device's peak, if any."""

    rows: list[Row]
    found: Rounds
    shares: Sequence[float]


def measure(
    bench: Bench,
    ranker: Ranker,
    name: str,
    documents: Sequence[Sequence[EncoderInput]],
    share_aim: float | None = None,
    padded_aim: float | None = None,
) -> Speeds:
    """Let packed and padded forms encode documents' inputs, with the operations that they need."""
    inputs = [item for document in documents for item in document]
    lengths = [real_tokens(item) for item in inputs]
    flops = encoder_flops(ranker.config, lengths, leading_tokens(inputs[0]))
    even = min(lengths) == max(lengths)
    span = f"{max(lengths)}" if even else f"{min(lengths)} to {max(lengths)}"
    padded = [SORTED] if even else [SORTED, UNSORTED]
    speeds, found = in_turns(bench, ranker, inputs, [PACKED, *padded])
    peak = statistics.median(bench.flops_per_s)
    shares = [speed * flops / len(inputs) / peak for speed in found.speeds.get(PACKED, ())]
    what, missing = "share of the measured peak, packed", found.failed.get(PACKED, "")
    return Speeds(
        [
            Row(
                f"{name}: {len(documents)} documents, {len(inputs)} pairs of {span} tokens",
                f"{flops / 1e12:.3g} TFLOP",
            ),
            *speeds,
            at_least(what, shares, share_aim, missing=missing),
            *(found.ratio_row(PACKED, form, f"packed over {form}", padded_aim) for form in padded),
        ],
        found,
        shares,
    )


# How batches are made, whether torch compiles the layers, and whether inputs are sorted.
FORMS: Mapping[str, tuple[Packing, bool, bool]] = {
    PACKED: ("packed", False, False),
    WRITTEN: ("packed", False, False),
    COMPILED: ("packed", True, False),
    SORTED: ("padded", False, True),
    UNSORTED: ("padded", False, False),
}


def in_turns(
    bench: Bench, ranker: Ranker, inputs: Sequence[EncoderInput], names: Sequence[str]
) -> tuple[list[Row], Rounds]:
    """Let forms encode the same inputs in turns; give their speeds."""
    forms: dict[str, Alone] = {}
    for name in names:
        packing, compiled, is_sorted = FORMS[name]
        runtime, _ = bench.open(ranker, packing, compile=compiled)
        ordered = longest_first(inputs) if is_sorted else inputs
        forms[name] = Alone(runtime, ordered, bench.extent.passes, padded=packing == "padded")
    found = measure_rounds(forms, bench.extent.repeats, bench.check_time)
    return [speed_row(name, form, found) for name, form in forms.items()], found


def speed_row(name: str, form: Alone, found: Rounds) -> Row:
    """Write down a form's speed, or why there is none."""
    what = f"pairs/s, {name}"
    return found.speed_row(
        name, what if name in found.failed else f"{what}, batches of up to {form.max_tokens:,} tokens"
    )
