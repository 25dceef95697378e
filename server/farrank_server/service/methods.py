"""The three methods: validate, translate, ask the engine, translate back. Nothing else."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from farrank.v1 import rerank_pb2 as pb
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.call import Document, RerankCall, brought
from farrank_server.engine.engine import Engine
from farrank_server.engine.rankers.loaded import Scorer
from farrank_server.metrics import Metrics
from farrank_server.service import answers, validate
from farrank_server.service.documents import of_candidates, of_ids, texts_of_results
from farrank_server.service.indexes import Indexes, OpenIndexes

SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"]

# About as many long documents as a CPU scores within the default deadline, and what the literature reranks.
DEFAULT_K_ON_A_CPU = 20
DEFAULT_K = 100


class RerankService:
    """The service of `rerank.proto` over an engine and the indexes.

    Its methods are named as there. `deadline_s` is a time of `time.monotonic`, None where none is set.
    Each raises the errors of `farrank_server.errors`, and CancelledError if the caller has gone.
    """

    def __init__(self, config: ServerConfig, engine: Engine, indexes: Indexes, metrics: Metrics) -> None:
        self._limits = config.limits
        self._max_query_terms = config.first_stage.max_query_terms
        self._engine = engine
        self._indexes = indexes
        self._metrics = metrics
        on_a_cpu = engine.scorer("").members[0].capabilities.device == "cpu"
        default_k = config.first_stage.default_k or (DEFAULT_K_ON_A_CPU if on_a_cpu else DEFAULT_K)
        self._default_k = min(default_k, config.limits.max_documents)

    @property
    def rankers(self) -> Mapping[str, Scorer]:
        """All by name, the default one first."""
        return self._engine.rankers

    async def Rerank(self, request: pb.RerankRequest, deadline_s: float | None) -> pb.RerankResponse:
        """Rerank the caller's documents, and those that it names of an index."""
        call = self._call(request, deadline_s)
        with self._engine.gate.passing(), self._indexes.held() as opened:
            given = validate.documents_of(request, self._limits)
            scorer = self._engine.scorer(call.ranker)
            response = pb.RerankResponse()
            answers.describe_scoring(response, scorer, request.options)
            documents = brought(given.texts)
            if not given.indexes:
                result = await self._engine.rerank(replace(call, documents=documents))
                answers.add_ranking(response, result, scorer, given.ids, given.texts, request.options)
            else:
                named = _named(opened, given)
                coming = list(documents)
                for number, (name, _) in named.items():
                    length = opened.first_stages.find(name).mean_characters
                    coming[number] = Document(length, None, opened.sources(name))
                with self._engine.reserve(call, coming) as reserved:
                    started_s = time.monotonic()
                    found = await of_ids(opened, named, scorer, call)
                    response.timings.first_stage_ns = _ns_since(started_s)
                    documents = tuple(found.get(n, document) for n, document in enumerate(documents))
                    result = await self._engine.rerank(replace(call, documents=documents), reserved)
                texts = [document.text for document in documents]
                answers.add_ranking(response, result, scorer, given.ids, texts, request.options)
                if request.options.return_texts:
                    await _add_texts(opened, response, documents, named, call.deadline_s)
            response.timings.total_ns = _ns_since(call.arrival_s)
            return response

    async def SearchAndRerank(
        self, request: pb.SearchAndRerankRequest, deadline_s: float | None
    ) -> pb.SearchAndRerankResponse:
        """Find candidates in an index and rerank them."""
        call = self._call(request, deadline_s)
        with self._engine.gate.passing(), self._indexes.held() as opened:
            validate.check_search(request, self._limits)
            scorer = self._engine.scorer(call.ranker)
            index = opened.first_stages.find(request.index)
            response = pb.SearchAndRerankResponse(index=index.name)
            answers.describe_scoring(response, scorer, request.options)
            k = request.k or self._default_k
            sources = opened.sources(index.name)
            coming = [Document(index.mean_characters, None, sources)] * min(k, index.documents)
            with self._engine.reserve(call, coming) as reserved:
                started_s = time.monotonic()
                remaining_s = max(0.0, call.deadline_s - started_s)
                reads_texts = sources is None or not sources.suffice(scorer.members, call.max_chunks)
                candidates = await opened.first_stages.search(
                    index.name, call.query, k, remaining_s, texts=reads_texts
                )
                documents = await of_candidates(opened, index.name, candidates, scorer, call)
                response.timings.first_stage_ns = _ns_since(started_s)
                self._metrics.first_stage_seconds.labels(index.name).observe(
                    response.timings.first_stage_ns / 1e9
                )
                # Without candidates there is nothing to rerank.
                if candidates:
                    result = await self._engine.rerank(replace(call, documents=tuple(documents)), reserved)
                    ids = [candidate.doc_id for candidate in candidates]
                    texts = [document.text for document in documents]
                    answers.add_ranking(response, result, scorer, ids, texts, request.options)
            named = {number: (index.name, each.doc_id) for number, each in enumerate(candidates)}
            if request.options.return_texts:
                await _add_texts(opened, response, documents, named, call.deadline_s)
            answers.add_first_stage_scores(response, candidates)
            response.timings.total_ns = _ns_since(call.arrival_s)
            return response

    async def ListRankers(
        self, request: pb.ListRankersRequest, deadline_s: float | None
    ) -> pb.ListRankersResponse:
        """List rankers, indexes and limits."""
        with self._engine.gate.passing(), self._indexes.held() as opened:
            return pb.ListRankersResponse(
                rankers=map(answers.ranker_to_pb, self._engine.rankers.values()),
                indexes=[
                    answers.index_to_pb(each, self._default_k, opened.sources(each.name))
                    for each in opened.first_stages.describe()
                ],
                limits=answers.limits_to_pb(self._limits, self._max_query_terms),
            )

    def _call(
        self, request: pb.RerankRequest | pb.SearchAndRerankRequest, deadline_s: float | None
    ) -> RerankCall:
        """Note when the call came and when it must be answered; its documents come later."""
        now_s = time.monotonic()
        return RerankCall(
            ranker=request.options.ranker,
            query=request.query,
            documents=(),
            max_chunks=request.options.max_chunks or None,
            arrival_s=now_s,
            deadline_s=now_s + self._limits.default_timeout_s if deadline_s is None else deadline_s,
            count_tokens=request.options.count_tokens_cut,
        )


def _ns_since(start_s: float) -> int:
    return round((time.monotonic() - start_s) * 1e9)


def _named(opened: OpenIndexes, given: validate.Given) -> dict[int, tuple[str, str]]:
    """Say which documents stand in which index under which id. Raises: NotFound."""
    for number, index in given.indexes.items():
        opened.first_stages.find(index, f"documents[{number}].index")
    return {number: (index, given.ids[number]) for number, index in given.indexes.items()}


async def _add_texts(
    opened: OpenIndexes,
    response: answers.Response,
    documents: Sequence[Document],
    named: Mapping[int, tuple[str, str]],
    deadline_s: float,
) -> None:
    """Read the texts of those results that were ranked without them. Raises: as `FirstStages.texts`."""
    numbers = [each.index for each in response.results if documents[each.index].text is None]
    texts = await texts_of_results(opened, named, numbers, deadline_s)
    for each in response.results:
        if each.index in texts:
            each.text = texts[each.index]
