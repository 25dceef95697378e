"""The gRPC methods: validate, translate, ask the engine, translate back. Nothing else."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.call import RerankCall
from farrank_server.engine.engine import Engine
from farrank_server.first_stage import Candidate, FirstStage, find_index
from farrank_server.metrics import Metrics
from farrank_server.wire import answers, validate

Request = pb.RerankRequest | pb.SearchAndRerankRequest
Context = grpc.aio.ServicerContext

# About as many long documents as a CPU scores within the default deadline, and what the literature reranks.
DEFAULT_K_ON_A_CPU = 20
DEFAULT_K = 100


@dataclass(frozen=True, slots=True)
class _Clock:
    """When a call came in and when it must be answered, in seconds of `time.monotonic`."""

    arrival_s: float
    deadline_s: float

    def elapsed_ns(self) -> int:
        return round((time.monotonic() - self.arrival_s) * 1e9)


class RerankServicer(rerank_pb2_grpc.RerankServiceServicer):
    """The service of `rerank.proto` over an engine and, where indexes are configured, a first stage."""

    def __init__(
        self, config: ServerConfig, engine: Engine, first_stage: FirstStage, metrics: Metrics
    ) -> None:
        self._limits = config.limits
        self._max_query_terms = config.first_stage.max_query_terms
        self._engine = engine
        self._first_stage = first_stage
        self._metrics = metrics
        on_a_cpu = answers.members_of(engine.rankers()[0])[0].capabilities.device == "cpu"
        default_k = config.first_stage.default_k or (DEFAULT_K_ON_A_CPU if on_a_cpu else DEFAULT_K)
        self._default_k = min(default_k, config.limits.max_documents)

    async def Rerank(  # the name that the generated base class gives it
        self, request: pb.RerankRequest, context: "Context[object, object]"
    ) -> pb.RerankResponse:
        """Rerank the caller's documents."""
        clock = self._clock(context)
        with self._engine.gate.passing():
            ids, texts = validate.documents_of(request, self._limits)
            scorer = self._engine.scorer(request.options.ranker)
            result = await self._engine.rerank(_call(request, texts, clock))
            response = pb.RerankResponse()
            answers.describe_scoring(response, scorer, request.options)
            answers.add_ranking(response, result, ids, texts, request.options)
            response.timings.total_ns = clock.elapsed_ns()
            return response

    async def SearchAndRerank(
        self, request: pb.SearchAndRerankRequest, context: "Context[object, object]"
    ) -> pb.SearchAndRerankResponse:
        """Find candidates in an index and rerank them."""
        clock = self._clock(context)
        with self._engine.gate.passing():
            validate.check_search(request, self._limits)
            scorer = self._engine.scorer(request.options.ranker)
            index = find_index(self._first_stage.describe(), request.index)
            response = pb.SearchAndRerankResponse(index=index.name)
            answers.describe_scoring(response, scorer, request.options)
            k = request.k or self._default_k
            lengths = [index.mean_characters] * min(k, index.documents)
            with self._engine.reserve(_call(request, (), clock), lengths) as reserved:
                candidates, response.timings.first_stage_ns = await self._search(
                    index.name, request.query, k, clock
                )
                # Without candidates there is nothing to rerank.
                if candidates:
                    texts = tuple(candidate.text for candidate in candidates)
                    result = await self._engine.rerank(_call(request, texts, clock), reserved)
                    ids = [candidate.doc_id for candidate in candidates]
                    answers.add_ranking(response, result, ids, texts, request.options)
            for each in response.results:
                each.first_stage_score = candidates[each.index].score
            response.timings.total_ns = clock.elapsed_ns()
            return response

    async def ListRankers(
        self, request: pb.ListRankersRequest, context: "Context[object, object]"
    ) -> pb.ListRankersResponse:
        """List rankers, indexes and limits."""
        with self._engine.gate.passing():
            return pb.ListRankersResponse(
                rankers=map(answers.ranker_to_pb, self._engine.rankers()),
                indexes=[
                    answers.index_to_pb(index, self._default_k) for index in self._first_stage.describe()
                ],
                limits=answers.limits_to_pb(self._limits, self._max_query_terms),
            )

    def _clock(self, context: "Context[object, object]") -> _Clock:
        now_s = time.monotonic()
        remaining_s = context.time_remaining()
        return _Clock(now_s, now_s + (self._limits.default_timeout_s if remaining_s is None else remaining_s))

    async def _search(self, index: str, query: str, k: int, clock: _Clock) -> tuple[Sequence[Candidate], int]:
        started_ns = time.perf_counter_ns()
        remaining_s = max(0.0, clock.deadline_s - time.monotonic())
        candidates = await self._first_stage.search(index, query, k, remaining_s)
        elapsed_ns = time.perf_counter_ns() - started_ns
        self._metrics.first_stage_seconds.labels(index).observe(elapsed_ns / 1e9)
        return candidates, elapsed_ns


def _call(request: Request, texts: tuple[str, ...], clock: _Clock) -> RerankCall:
    return RerankCall(
        ranker=request.options.ranker,
        query=request.query,
        texts=texts,
        max_chunks=request.options.max_chunks or None,
        arrival_s=clock.arrival_s,
        deadline_s=clock.deadline_s,
        count_tokens=request.options.count_tokens_cut,
    )
