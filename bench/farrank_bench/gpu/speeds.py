"""The speed of packed models, its share of the device's peak, and the speed of padded models."""

import statistics
from collections.abc import Mapping, Sequence

from farrank_bench.gpu.bench import DeviceBench
from farrank_bench.gpu.flops import encoder_flops
from farrank_bench.gpu.inputs import LONG_QUERY, full_texts, leading_tokens, mixed_texts, real_tokens
from farrank_bench.offline import Request, RuntimeAlone, longest_first
from farrank_bench.report import Row, at_least
from farrank_bench.rounds import Rounds, measure_rounds, whole
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Packing

PACKED, SORTED, UNSORTED = "packed", "padded, sorted by length", "padded, as they come"
WRITTEN, COMPILED = "packed, as written", "packed, compiled"

MIN_SHARE = 0.55
MIN_OF_FULL = 0.9
OVER_PADDED = 2.0


def first_passages(bench: DeviceBench) -> list[Row]:
    """Measure BERT-base FirstP on full chunks and on mixed lengths. Raises: PartlyFailed."""
    ranker, count = bench.model("firstp-bert"), bench.extent.documents
    texts = full_texts(bench.corpus, ranker.reader, count), mixed_texts(bench.corpus, ranker.reader, count)
    attention = attention_row(bench, ranker)
    full, of_full, shares_of_full = measure(bench, ranker, "full chunks", texts[0], share_aim=MIN_SHARE)
    mixed, of_mixed, shares = measure(bench, ranker, "mixed lengths", texts[1], padded_aim=OVER_PADDED)
    what = "share of peak on mixed lengths over that on full chunks"
    ratios = [share / statistics.median(shares_of_full) for share in shares if shares_of_full]
    ratio = at_least(what, ratios, MIN_OF_FULL, missing="" if ratios else "a form failed")
    return whole([attention, *full, *mixed, ratio], of_full, of_mixed)


def full_documents_of(name: str, bench: DeviceBench) -> list[Row]:
    """Measure another model on full documents. Raises: PartlyFailed."""
    ranker = bench.model(name)
    texts = full_texts(bench.corpus, ranker.reader, bench.extent.documents)
    rows, found, _ = measure(bench, ranker, "full documents", texts)
    return whole([attention_row(bench, ranker), *rows], found)


def forms_of(name: str, bench: DeviceBench) -> list[Row]:
    """Encode documents of mixed lengths in every form, in turns. Raises: PartlyFailed."""
    ranker = bench.model(name)
    texts = mixed_texts(bench.corpus, ranker.reader, bench.extent.documents)
    inputs = Request(ranker.reader, LONG_QUERY, texts).inputs
    rows, found = in_turns(bench, ranker, inputs, (WRITTEN, COMPILED, SORTED))
    fastest = max(found.speeds, key=lambda form: statistics.median(found.speeds[form]), default="none")
    return whole([attention_row(bench, ranker), *rows, Row("fastest", fastest)], found)


def attention_row(bench: DeviceBench, ranker: Ranker) -> Row:
    """Report the implementation of attention in packed and in padded batches."""
    _, packed = bench.open(ranker, "packed")
    config = ranker.encoder.backbone.config
    padded = getattr(config, "_attn_implementation", None) or "the backbone's own"
    return Row("attention", f"{packed}; padded: {padded}")


def measure(
    bench: DeviceBench,
    ranker: Ranker,
    name: str,
    texts: Sequence[str],
    share_aim: float | None = None,
    padded_aim: float | None = None,
) -> tuple[list[Row], Rounds, list[float]]:
    """Let packed and padded forms encode the inputs of a long query and these documents.

    Also returns the packed batches' shares of the device's peak, or none if these batches failed.
    """
    inputs = Request(ranker.reader, LONG_QUERY, texts).inputs
    lengths = [real_tokens(item) for item in inputs]
    flops = encoder_flops(ranker.backbone_config, lengths, leading_tokens(inputs[0]))
    even = min(lengths) == max(lengths)
    span = f"{max(lengths)}" if even else f"{min(lengths)} to {max(lengths)}"
    padded = [SORTED] if even else [SORTED, UNSORTED]
    speeds, found = in_turns(bench, ranker, inputs, [PACKED, *padded])
    peak = statistics.median(bench.flops_per_s)
    shares = [speed * flops / len(inputs) / peak for speed in found.speeds.get(PACKED, ())]
    what, missing = "share of the measured peak, packed", found.failed.get(PACKED, "")
    work = f"{name}: {len(texts)} documents, {len(inputs)} pairs of {span} tokens"
    rows = [
        Row(work, f"{flops / 1e12:.3g} TFLOP"),
        *speeds,
        at_least(what, shares, share_aim, missing=missing),
        *(found.ratio_row(PACKED, form, f"packed over {form}", padded_aim) for form in padded),
    ]
    return rows, found, shares


# Each form's packing, whether torch compiles the layers, and whether inputs are sorted.
FORMS: Mapping[str, tuple[Packing, bool, bool]] = {
    PACKED: ("packed", False, False),
    WRITTEN: ("packed", False, False),
    COMPILED: ("packed", True, False),
    SORTED: ("padded", False, True),
    UNSORTED: ("padded", False, False),
}


def in_turns(
    bench: DeviceBench, ranker: Ranker, inputs: Sequence[EncoderInput], names: Sequence[str]
) -> tuple[list[Row], Rounds]:
    """Let forms encode the same inputs in turns. Returns the rows of their speeds, and the rounds."""
    forms: dict[str, RuntimeAlone] = {}
    for name in names:
        packing, compiled, is_sorted = FORMS[name]
        runtime, _ = bench.open(ranker, packing, compile=compiled)
        ordered = longest_first(inputs) if is_sorted else inputs
        forms[name] = RuntimeAlone(
            runtime, ordered, bench.extent.passes, padded=packing == "padded", check_time=bench.check_time
        )
    found = measure_rounds({name: form.score for name, form in forms.items()}, bench.extent.repeats)
    return [speed_row(name, form, found) for name, form in forms.items()], found


def speed_row(name: str, form: RuntimeAlone, found: Rounds) -> Row:
    """Report a form's speed, or why there is none."""
    what = f"pairs/s, {name}"
    return found.speed_row(
        name, what if name in found.failed else f"{what}, batches of up to {form.max_tokens:,} tokens"
    )
