"""ModernBERT-base with random weights: in torch and as an export, against sentence-transformers.

Speed does not depend on the weights, so a published checkpoint of this size is as fast. The effect of
rounding on rankings does depend on them: the export is therefore written whatever its parity is. It is in
bf16, because int8 changes the rankings of this model far beyond its bound.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from farrank_bench.against_peers import tau_row, taus
from farrank_bench.corpus_calls import encoder_inputs, make_calls
from farrank_bench.exporting import CrossEncoder, write_random
from farrank_bench.peers import PREDICT, predicting
from farrank_bench.report import Row
from farrank_bench.rounds import Contender, measure_rounds, whole
from farrank_bench.served import RANKER, score_served, serving
from farrank_client import Client
from farrank_exporters.export import export_ranker
from farrank_exporters.texts import SampleTexts, divide, python_documentation

# The published configuration of answerdotai/ModernBERT-base. Fields that do not affect speed are left out.
BASE = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForSequenceClassification"],
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "classifier_pooling": "mean",
    "pad_token_id": 0,
}
CALLERS = 4
TORCH, EXPORT = "Farrank, torch bf16", "Farrank, its export"
PREDICT_BF16, PREDICT_FP32 = f"{PREDICT}, bf16", f"{PREDICT}, fp32"
# The ratio of the first contender's speed to the second's.
AIMS = {(TORCH, PREDICT_BF16): 1.0, (EXPORT, PREDICT_BF16): 3.0, (EXPORT, PREDICT_FP32): None}


def write_modernbert(folder: Path, sizes: Mapping[str, object] | None = None) -> CrossEncoder:
    """Write both forms of a cross-encoder. Its tokenizer is MiniLM's, because no package has ModernBERT's."""
    return write_random(folder, {**BASE, **(sizes or {})})


def export_bf16(made: CrossEncoder) -> Row:
    """Export into the artifact in bf16. Report the parity on a few texts."""
    measured, calibration = divide(python_documentation(), "the topics of help()")
    few = SampleTexts(measured.queries[:2], measured.documents[:6])
    print("  exporting bf16", flush=True)
    export = export_ranker(
        made.ranker,
        made.artifact,
        "onnx",
        "bf16",
        measured=few,
        calibration=calibration,
        allow_drift=True,
    )
    taus_of = (
        f"{each.runtime}: Kendall's tau {each.kendall_tau:.4f} ({each.queries} x {each.documents} pairs)"
        for each in export.manifest.parity
    )
    return Row("export in bf16, parity with torch in fp32, random weights", "; ".join(taus_of))


def modernbert_against_peers(
    made: CrossEncoder, size: tuple[int, int], rounds: int, threads: int
) -> list[Row]:
    """Let all contenders score the same pairs. `size` is a round's number of calls and documents per call."""
    exported = export_bf16(made)
    calls = make_calls(made.ranker.reader, *size, seed=2, pairs=True)
    lengths = sorted(each.tokens for each in encoder_inputs(made.ranker.reader, calls))
    contenders: dict[str, Contender] = {}
    served: dict[str, str] = {}
    with ExitStack() as stack:
        device = ("--device", "cpu", "--threads", str(threads))
        flags = {TORCH: ("--runtime", "torch", "--precision", "bf16"), EXPORT: ()}
        for name, chosen in flags.items():
            server = stack.enter_context(serving(made.artifact, *device, *chosen))
            with Client(server.address) as client:
                served[name] = client.rankers().rankers[0].runtime_reason
            contenders[name] = partial(score_served, server.address, RANKER, CALLERS, calls)
        contenders[PREDICT_BF16] = stack.enter_context(predicting(made.transformers, calls, threads, "bf16"))
        contenders[PREDICT_FP32] = stack.enter_context(predicting(made.transformers, calls, threads))
        found = measure_rounds(contenders, rounds)
    rows = [
        exported,
        Row("pairs in each round", f"{len(lengths)} of {lengths[0]} to {lengths[-1]} tokens"),
        *(Row(f"the runtime of {name}", reason) for name, reason in served.items()),
        *(found.speed_row(name, f"pairs/s, {name}") for name in (*flags, PREDICT_BF16, PREDICT_FP32)),
        *(
            found.ratio_row(ours, theirs, f"{ours}, over {theirs}", aim, ".2f")
            for (ours, theirs), aim in AIMS.items()
        ),
    ]
    if PREDICT_FP32 in found.scores:
        for name in (*flags, PREDICT_BF16):
            by_call = taus(found.scores[PREDICT_FP32], found.scores[name]) if name in found.scores else []
            if by_call:
                rows.append(tau_row(name, by_call, "bf16"))
    return whole(rows, found)
