"""The three methods: each validates and translates the request, calls the engine and translates back."""

import time
from collections.abc import Mapping
from functools import partial

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.fairness.fair_order import Account, CallPriority
from farrank_calls.telemetry.call_record import CallRecord
from farrank_server.access.callers import Caller, Entry
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.call import (
    AnyDocument,
    ExpectedDocument,
    RerankCall,
    text_documents,
)
from farrank_server.engine.engine import Engine
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.engine.versions import split_version
from farrank_server.metrics import Metrics
from farrank_server.service import answers, validate
from farrank_server.service.documents import of_candidates, of_ids, reading_texts
from farrank_server.service.evidence import add_evidence, expect_evidence
from farrank_server.service.indexes import Indexes, OpenIndexes

SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"]

# About as many long documents as a CPU scores within the default deadline, and the usual number in the
# literature.
DEFAULT_K_ON_A_CPU = 20
DEFAULT_K = 100


class RerankService:
    """The service of `rerank.proto` over an engine and the indexes.

    Its methods have the names of the contract. `deadline_s` is a time of `time.monotonic`, or None if none is
    set. For a caller, rankers and indexes that it may not use do not exist: asking for one gets that answer,
    and no answer mentions it. Each method raises the errors of `farrank_calls.errors`, and CancelledError if
    the caller has disconnected.
    """

    def __init__(self, config: ServerConfig, engine: Engine, indexes: Indexes, metrics: Metrics) -> None:
        self._limits = config.limits
        self._max_query_terms = config.first_stage.max_query_terms
        self._engine = engine
        self._indexes = indexes
        self._metrics = metrics
        on_a_cpu = engine.versions.find("").members[0].capabilities.device == "cpu"
        default_k = config.first_stage.default_k or (DEFAULT_K_ON_A_CPU if on_a_cpu else DEFAULT_K)
        self._default_k = min(default_k, config.limits.max_documents)

    @property
    def rankers(self) -> Mapping[str, Scorer]:
        """All rankers by name, the default one first."""
        return self._engine.rankers

    @property
    def gone(self) -> Mapping[str, str]:
        """Why rankers were removed, by their names."""
        return self._engine.versions.gone

    async def Rerank(
        self, request: pb.RerankRequest, deadline_s: float | None, entry: Entry
    ) -> pb.RerankResponse:
        """Rerank the caller's documents, and documents of an index that the request names."""
        call, caller = self._call(request, deadline_s, entry), entry.caller
        with (
            self._engine.gate.passing(call.account),
            self._indexes.held() as opened,
            caller.spending() as spending,
            self._engine.holding(call) as scorer,
        ):
            entry.role = self._engine.versions.role_of(scorer)
            given = await validate.documents_of(request, self._limits)
            response = pb.RerankResponse()
            answers.describe_scoring(response, scorer, request.options)
            documents = text_documents(given.texts)
            named: Mapping[int, tuple[str, str]] = {}
            if not given.indexes:
                spending.expect(partial(self._engine.expected_tokens, call, documents))
                call.documents = documents
                result = await self._engine.rerank(call, on_admitted=entry.on_admitted)
                answers.add_ranking(response, result, scorer, given.ids, documents, request.options)
            else:
                named = _named(opened, given, caller)
                expected = list[AnyDocument](documents)
                for number, (name, _) in named.items():
                    length = opened.first_stages.find(name).mean_characters
                    expected[number] = ExpectedDocument(length, opened.sources(name))
                spending.expect(partial(self._engine.expected_tokens, call, expected))
                with self._engine.admitted(call, expected) as reserved:
                    entry.on_admitted()
                    started_s = time.monotonic()
                    with call.record.stage("first_stage", documents=len(named)):
                        found = await of_ids(opened, named, scorer, call)
                    response.timings.first_stage_ns = _ns_since(started_s)
                    documents = tuple(found.get(n, document) for n, document in enumerate(documents))
                    call.documents = documents
                    expect_evidence(call, request.options)
                    result = await self._engine.rerank(call, reserved)
                answers.add_ranking(response, result, scorer, given.ids, documents, request.options)
                if request.options.return_texts:
                    await _add_texts(self._engine, opened, call, named, response)
            if validate.wants_evidence(request.options):
                await add_evidence(self._engine, opened, call, result, named, request.options, response)
            spending.answered(response.usage.tokens)
            response.timings.total_ns = _ns_since(call.arrival_s)
            _tell(call.record, response)
            return response

    async def SearchAndRerank(
        self, request: pb.SearchAndRerankRequest, deadline_s: float | None, entry: Entry
    ) -> pb.SearchAndRerankResponse:
        """Find candidates in an index and rerank them."""
        call, caller = self._call(request, deadline_s, entry), entry.caller
        with (
            self._engine.gate.passing(call.account),
            self._indexes.held() as opened,
            caller.spending() as spending,
            self._engine.holding(call) as scorer,
        ):
            entry.role = self._engine.versions.role_of(scorer)
            validate.check_search(request, self._limits)
            index = opened.first_stages.find(caller.index(request.index, opened.names))
            response = pb.SearchAndRerankResponse(index=index.name)
            answers.describe_scoring(response, scorer, request.options)
            k = request.k or self._default_k
            sources = opened.sources(index.name)
            expected = [ExpectedDocument(index.mean_characters, sources)] * min(k, index.documents)
            spending.expect(partial(self._engine.expected_tokens, call, expected))
            with self._engine.admitted(call, expected) as reserved:
                entry.on_admitted()
                started_s = time.monotonic()
                remaining_s = max(0.0, call.deadline_s - started_s)
                reads_texts = sources is None or not sources.suffice(scorer.members, call.max_chunks)
                with call.record.stage("first_stage", index=index.name, documents=k):
                    candidates = await opened.first_stages.search(
                        index.name, call.query, k, remaining_s, texts=reads_texts, call=call.record
                    )
                    documents = await of_candidates(opened, index.name, candidates, scorer, call)
                response.timings.first_stage_ns = _ns_since(started_s)
                self._metrics.first_stage_seconds.labels(index.name).observe(
                    response.timings.first_stage_ns / 1e9, call.record.exemplar()
                )
                result = None
                if not candidates:
                    # There is nothing to rerank, but errors in the query are still reported.
                    await self._engine.check_query(call)
                else:
                    call.documents = tuple(documents)
                    expect_evidence(call, request.options)
                    result = await self._engine.rerank(call, reserved)
                    ids = [candidate.doc_id for candidate in candidates]
                    answers.add_ranking(response, result, scorer, ids, documents, request.options)
            named = {number: (index.name, each.doc_id) for number, each in enumerate(candidates)}
            if request.options.return_texts:
                await _add_texts(self._engine, opened, call, named, response)
            if result is not None and validate.wants_evidence(request.options):
                await add_evidence(self._engine, opened, call, result, named, request.options, response)
            answers.add_first_stage_scores(response, candidates, caller)
            spending.answered(response.usage.tokens)
            response.timings.total_ns = _ns_since(call.arrival_s)
            _tell(call.record, response)
            return response

    async def ListRankers(
        self, request: pb.ListRankersRequest, deadline_s: float | None, entry: Entry
    ) -> pb.ListRankersResponse:
        """List the rankers and indexes that the caller may use, the default ranker first, and the limits."""
        rankers, caller = self._engine.rankers, entry.caller
        usable = dict.fromkeys((caller.default_ranker(rankers), *filter(caller.may_rank, rankers)))
        with self._engine.gate.passing(caller.account), self._indexes.held() as opened:
            return pb.ListRankersResponse(
                rankers=[answers.ranker_to_pb(rankers[name], caller) for name in usable if name],
                indexes=[
                    answers.index_to_pb(each, self._default_k, opened.sources(each.name), caller)
                    for each in opened.first_stages.describe()
                    if caller.may_search(each.name)
                ],
                limits=answers.limits_to_pb(self._limits, self._max_query_terms),
            )

    def _call(
        self, request: pb.RerankRequest | pb.SearchAndRerankRequest, deadline_s: float | None, entry: Entry
    ) -> RerankCall:
        """Record the call's arrival, deadline and options; its documents come later.

        Raises: PermissionDenied; InvalidArgument.
        """
        now_s, caller = time.monotonic(), entry.caller
        entry.record.account = _account(request.options, caller)
        ranker, version = split_version(request.options.ranker, self._engine.rankers)
        return RerankCall(
            ranker=caller.ranker(ranker, self._engine.rankers),
            version=version,
            query=request.query,
            documents=(),
            max_chunks=request.options.max_chunks or None,
            arrival_s=now_s,
            deadline_s=now_s + self._limits.default_timeout_s if deadline_s is None else deadline_s,
            count_tokens=request.options.count_tokens_cut,
            record=entry.record,
            depth=validate.depth_of(request.options),
            comparable_scores=request.options.comparable_scores,
            instruction=request.options.instruction,
            token_matches=request.options.return_token_matches,
            top_n=request.options.top_n or None,
        )


_STAGES = "first_stage", "tokenization", "queue", "inference", "aggregation", "selection", "evidence"


def _tell(record: CallRecord, response: pb.RerankResponse | pb.SearchAndRerankResponse) -> None:
    """Record the size of the answer and the time of each stage, for the call's log line."""
    usage, timings = response.usage, response.timings
    record.facts |= {"results": len(response.results), "chunks": usage.chunks, "tokens": usage.tokens}
    record.facts |= {f"{stage}_seconds": getattr(timings, f"{stage}_ns") / 1e9 for stage in _STAGES}


def _account(options: pb.RerankOptions, caller: Caller) -> Account:
    """The account that is charged for a call's work: calls of batch priority have a separate one."""
    if options.priority == pb.PRIORITY_BATCH:
        return caller.account._replace(priority=CallPriority.BATCH)
    return caller.account


def _ns_since(start_s: float) -> int:
    return round((time.monotonic() - start_s) * 1e9)


def _named(
    opened: OpenIndexes, given: validate.RequestDocuments, caller: Caller
) -> dict[int, tuple[str, str]]:
    """The index and id of each document that names an index. Raises: NotFound; PermissionDenied."""
    for number, index in given.indexes.items():
        field = f"documents[{number}].index"
        opened.first_stages.find(caller.index(index, opened.names, field), field)
    return {number: (index, given.ids[number]) for number, index in given.indexes.items()}


async def _add_texts(
    engine: Engine,
    opened: OpenIndexes,
    call: RerankCall,
    named: Mapping[int, tuple[str, str]],
    response: answers.Response,
) -> None:
    """Add the texts of results that were ranked without them.

    Raises: the errors of `reading_texts`; DeadlineExceeded.
    """
    lacking = [each for each in response.results if not each.HasField("text")]
    if not lacking:
        return
    read = await engine.beside(call, await reading_texts(opened, call, lacking, named))
    for each, document in zip(lacking, read, strict=True):
        each.text = document.text
