"""How long one request of many documents takes, from text through an idle server and tokenized in advance."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.clock import seconds_of
from farrank_bench.gpu.scoring import Request, score
from farrank_bench.gpu.served import serving
from farrank_bench.gpu.texts import LONG_QUERY, full_texts
from farrank_bench.rows import Row, below, spread
from farrank_bench.workload import BenchCall

# What comes first makes memory pools and compiled kernels.
UNMEASURED = 3


@dataclass(frozen=True, slots=True)
class Aim:
    """A model's name, and what its request may take, tokenized in advance."""

    name: str
    tokenized_ms: float


AIMS: Mapping[str, Aim] = {
    "firstp-bert": Aim("FirstP", 25.0),
    "parade-attn-bert": Aim("PARADE Attn", 65.0),
}


def latency_of(name: str, bench: Bench) -> list[Row]:
    """Send a request of full documents again and again, then score it without a server."""
    # A machine that has no client still measures what needs none.
    from farrank_bench.online import run_one_by_one

    ranker, aim, calls = bench.model(name), AIMS[name], bench.extent.calls
    texts = full_texts(bench.corpus, ranker.reader, bench.extent.documents)
    request = Request(ranker.reader, LONG_QUERY, texts)
    with serving(bench, ranker) as server:
        call = BenchCall(LONG_QUERY, texts)
        run_one_by_one(server.address, call, UNMEASURED)
        served = run_one_by_one(server.address, call, calls)
    runtime, form = bench.open(ranker, "packed")
    runtime.warm_up()
    alone_s = [seconds_of(partial(score, runtime, request), bench.device) for _ in range(UNMEASURED + calls)]
    alone_ms = [seconds * 1e3 for seconds in alone_s[UNMEASURED:]]
    tokens = sum(item.tokens for item in request.inputs)
    return [
        Row(
            f"{aim.name}: one request",
            f"{len(texts)} documents, {len(request.inputs)} inputs, {tokens} tokens",
        ),
        Row("runtime", form),
        Row("from text, through an idle server, ms", spread([seconds * 1e3 for seconds, _ in served], ".1f")),
        Row("the model's time in these calls, ms", spread([model * 1e3 for _, model in served], ".1f")),
        below("tokenized in advance, the runtime alone, ms", alone_ms, aim.tokenized_ms, ".1f"),
    ]


LATENCIES = {name: partial(latency_of, name) for name in AIMS}
