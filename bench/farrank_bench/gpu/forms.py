"""Packed or padded, compiled or as written: which is faster, backbone by backbone, for defaults to follow."""

import statistics
from collections.abc import Mapping
from functools import partial

from farrank_bench.contenders.rounds import measure_rounds
from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.encoding import Form, speed_row, whole
from farrank_bench.gpu.inputs import mixed_documents
from farrank_bench.gpu.speeds import attention_row
from farrank_bench.report import Row

WRITTEN, COMPILED, PADDED = "packed, as written", "packed, compiled", "padded, sorted by length"

MODELS: Mapping[str, str] = {
    "firstp-bert": "BERT",
    "firstp-deberta": "DeBERTa",
    "longp-longformer": "Longformer",
    "longp-bigbird": "BigBird",
}


def forms_of(name: str, bench: Bench) -> list[Row]:
    """Encode documents of mixed lengths in every form, in turns. Raises: PartlyFailed."""
    ranker, passes = bench.model(name), bench.extent.passes
    documents = mixed_documents(ranker.reader, bench.extent.documents)
    inputs = [item for document in documents for item in document]
    longest_first = sorted(inputs, key=lambda item: -item.tokens)
    written, _ = bench.open(ranker, "packed")
    compiled, _ = bench.open(ranker, "packed", compile=True)
    padded, _ = bench.open(ranker, "padded")
    contenders = {
        WRITTEN: Form(written, inputs, passes, padded=False),
        COMPILED: Form(compiled, inputs, passes, padded=False),
        PADDED: Form(padded, longest_first, passes, padded=True),
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


FORMS = {name: partial(forms_of, name) for name in MODELS}
