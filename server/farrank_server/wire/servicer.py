"""The gRPC methods: validate, translate, ask the engine, translate back. Nothing else."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.call import RerankCall, RerankResult
from farrank_server.engine.engine import Engine
from farrank_server.errors import NotFound
from farrank_server.first_stage import Candidate, FirstStage
from farrank_server.metrics import Metrics
from farrank_server.wire import answers, validate


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
        self._config = config
        self._engine = engine
        self._first_stage = first_stage
        self._metrics = metrics

    async def Rerank(  # the name that the generated base class gives it
        self, request: pb.RerankRequest, context: "grpc.aio.ServicerContext[object, object]"
    ) -> pb.RerankResponse:
        """Rerank the caller's documents."""
        clock = self._clock(context)
        with self._engine.gate.passing():
            validate.check_size(request.ByteSize(), self._config.limits)
            validate.check_query(request.query, self._config.limits)
            validate.check_documents(request.documents, self._config.limits)
            validate.check_options(request.options)
            ids = [document.id for document in request.documents]
            texts = tuple(document.text for document in request.documents)
            outcome = await self._rerank(request.query, texts, request.options, clock)
            return pb.RerankResponse(
                results=answers.results_to_pb(outcome, ids, texts, request.options),
                query_tokens_cut=outcome.read.query_tokens_cut,
                usage=answers.usage_to_pb(outcome),
                timings=answers.timings_to_pb(outcome, clock.elapsed_ns()),
                ranker=answers.version_to_pb(outcome.scorer),
            )

    async def SearchAndRerank(
        self, request: pb.SearchAndRerankRequest, context: "grpc.aio.ServicerContext[object, object]"
    ) -> pb.SearchAndRerankResponse:
        """Find candidates in an index and rerank them."""
        clock = self._clock(context)
        with self._engine.gate.passing():
            validate.check_size(request.ByteSize(), self._config.limits)
            validate.check_query(request.query, self._config.limits)
            validate.check_k(request.k, self._config.limits)
            validate.check_options(request.options)
            scorer = self._engine.scorer(request.options.ranker)
            index = self._index(request.index)
            candidates, first_stage_ns = await self._search(index, request, clock)
            response = pb.SearchAndRerankResponse(ranker=answers.version_to_pb(scorer), index=index)
            if not candidates:
                response.timings.total_ns = clock.elapsed_ns()
                response.timings.first_stage_ns = first_stage_ns
                return response
            ids = [candidate.doc_id for candidate in candidates]
            texts = tuple(candidate.text for candidate in candidates)
            outcome = await self._rerank(request.query, texts, request.options, clock)
            results = answers.results_to_pb(outcome, ids, texts, request.options)
            for result in results:
                result.first_stage_score = candidates[result.index].score
            response.results.extend(results)
            response.query_tokens_cut = outcome.read.query_tokens_cut
            response.usage.CopyFrom(answers.usage_to_pb(outcome))
            response.timings.CopyFrom(answers.timings_to_pb(outcome, clock.elapsed_ns(), first_stage_ns))
            return response

    async def ListRankers(
        self, request: pb.ListRankersRequest, context: "grpc.aio.ServicerContext[object, object]"
    ) -> pb.ListRankersResponse:
        """List rankers, indexes and limits."""
        with self._engine.gate.passing():
            return pb.ListRankersResponse(
                rankers=[
                    *map(answers.ranker_to_pb, self._engine.loaded.values()),
                    *map(answers.ensemble_to_pb, self._engine.ensembles.values()),
                ],
                indexes=[answers.index_to_pb(index) for index in self._first_stage.describe()],
                limits=answers.limits_to_pb(self._config.limits),
            )

    def _clock(self, context: "grpc.aio.ServicerContext[object, object]") -> _Clock:
        now_s = time.monotonic()
        remaining_s = context.time_remaining()
        if remaining_s is None:
            remaining_s = self._config.limits.default_timeout_s
        return _Clock(now_s, now_s + remaining_s)

    async def _rerank(
        self, query: str, texts: tuple[str, ...], options: pb.RerankOptions, clock: _Clock
    ) -> RerankResult:
        return await self._engine.rerank(
            RerankCall(
                ranker=options.ranker,
                query=query,
                texts=texts,
                max_chunks=options.max_chunks or None,
                arrival_s=clock.arrival_s,
                deadline_s=clock.deadline_s,
            )
        )

    async def _search(
        self, index: str, request: pb.SearchAndRerankRequest, clock: _Clock
    ) -> tuple[Sequence[Candidate], int]:
        started_ns = time.perf_counter_ns()
        k = request.k or min(self._config.first_stage.default_k or 20, self._config.limits.max_documents)
        remaining_s = clock.deadline_s - time.monotonic()
        candidates = await self._first_stage.search(index, request.query, k, max(0.0, remaining_s))
        elapsed_ns = time.perf_counter_ns() - started_ns
        self._metrics.first_stage_seconds.labels(index).observe(elapsed_ns / 1e9)
        return candidates, elapsed_ns

    def _index(self, name: str) -> str:
        """Find an index; the empty name means the only one."""
        known = [index.name for index in self._first_stage.describe()]
        if name in known:
            return name
        if not name and len(known) == 1:
            return known[0]
        if not known:
            raise NotFound(
                "index: this server holds no index; start it with one, or send documents to Rerank"
            )
        listed = ", ".join(known)
        if not name:
            raise NotFound(f"index: is empty, and this server holds several: {listed}")
        raise NotFound(f"index: no index {name[:100]!r} here; known are: {listed}")
