"""Outcomes become protobuf messages (`to_pb`)."""

from collections.abc import Sequence
from dataclasses import asdict

from farrank.v1 import rerank_pb2 as pb
from farrank_rankers.exports.manifest import Parity
from farrank_rankers.family import ENSEMBLE, EvidenceKind
from farrank_server.config.schema import LimitsConfig
from farrank_server.engine.call import RerankResult, ScoredDocument, Scorer
from farrank_server.engine.ensemble import LoadedEnsemble
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.first_stage import IndexDescription

EVIDENCE = {
    EvidenceKind.CHUNK_SCORE: pb.EVIDENCE_CHUNK_SCORE,
    EvidenceKind.ATTENTION: pb.EVIDENCE_ATTENTION,
    EvidenceKind.LEAVE_ONE_OUT: pb.EVIDENCE_LEAVE_ONE_OUT,
}


def results_to_pb(
    outcome: RerankResult, ids: Sequence[str], texts: Sequence[str], options: pb.RerankOptions
) -> list[pb.Result]:
    """Order the documents, best first and equals as they came, and keep `top_n`."""
    order = sorted(range(len(ids)), key=lambda index: -outcome.documents[index].score)
    evidence = EVIDENCE[outcome.scorer.evidence]
    return [
        _result_to_pb(outcome.documents[index], index, ids[index], texts[index], evidence, options)
        for index in order[: options.top_n or None]
    ]


def usage_to_pb(outcome: RerankResult) -> pb.Usage:
    """What the call took in and what it cost."""
    return pb.Usage(
        tokens=outcome.read.tokens,
        chunks=outcome.read.chunks,
        pairs=outcome.device.pairs,
        padded_tokens=outcome.device.padded_tokens,
        cached_chunks=outcome.read.cached_chunks,
    )


def timings_to_pb(outcome: RerankResult, total_ns: int, first_stage_ns: int = 0) -> pb.Timings:
    """Where the call's time went."""
    return pb.Timings(
        total_ns=total_ns,
        first_stage_ns=first_stage_ns,
        tokenization_ns=outcome.tokenization_ns,
        queue_ns=outcome.device.queue_ns,
        inference_ns=outcome.device.inference_ns,
        aggregation_ns=outcome.device.aggregation_ns,
    )


def version_to_pb(scorer: Scorer) -> pb.RankerVersion:
    """Who scored."""
    return pb.RankerVersion(name=scorer.name, version=scorer.version)


def ranker_to_pb(lane: LoadedRanker) -> pb.RankerInfo:
    """Describe a loaded ranker."""
    spec, capabilities = lane.spec, lane.runtime.capabilities()
    return pb.RankerInfo(
        name=lane.name,
        version=lane.version,
        family=spec.family,
        backbone=spec.backbone,
        max_query_tokens=spec.max_query_tokens,
        max_document_tokens=spec.chunking.max_document_tokens,
        window=spec.chunking.window,
        stride=spec.chunking.stride,
        runtime=capabilities.runtime,
        device=capabilities.device,
        precision=capabilities.precision,
        options={name: str(value) for name, value in asdict(spec.options).items()},
        runtime_reason=lane.runtime_reason,
        parity=_parity_to_pb(lane.parity) if lane.parity else None,
    )


def ensemble_to_pb(ensemble: LoadedEnsemble) -> pb.RankerInfo:
    """Describe an ensemble by what its members have in common, or the most that one of them takes in."""
    members = ensemble.members
    specs = [lane.spec for lane in members]
    capabilities = members[0].runtime.capabilities()
    return pb.RankerInfo(
        name=ensemble.name,
        version=ensemble.version,
        family=ENSEMBLE,
        backbone=" + ".join(dict.fromkeys(spec.backbone for spec in specs)),
        max_query_tokens=max(spec.max_query_tokens for spec in specs),
        max_document_tokens=max(spec.chunking.max_document_tokens for spec in specs),
        window=specs[0].chunking.window,
        stride=specs[0].chunking.stride,
        runtime=capabilities.runtime,
        device=capabilities.device,
        precision=capabilities.precision,
        options={"members": ", ".join(lane.name for lane in members)},
        runtime_reason="; ".join(f"{lane.name}: {lane.runtime_reason}" for lane in members),
    )


def index_to_pb(index: IndexDescription) -> pb.IndexInfo:
    """Describe an open index."""
    return pb.IndexInfo(name=index.name, documents=index.documents, first_stage=index.ranking)


def limits_to_pb(limits: LimitsConfig) -> pb.Limits:
    """Say what a request may hold."""
    return pb.Limits(
        max_documents=limits.max_documents,
        max_document_bytes=limits.max_document_bytes,
        max_query_bytes=limits.max_query_bytes,
        max_request_bytes=limits.max_request_bytes,
        max_queued_tokens=limits.max_queued_tokens,
    )


def _parity_to_pb(parity: Parity) -> pb.Parity:
    return pb.Parity(
        max_difference=parity.max_difference,
        mean_difference=parity.mean_difference,
        kendall_tau=parity.kendall_tau,
        top10_overlap=parity.top10_overlap,
        texts=parity.documents,
        queries=parity.queries,
        spread=parity.spread,
    )


def _result_to_pb(
    document: ScoredDocument,
    index: int,
    doc_id: str,
    text: str,
    evidence: "pb.Evidence",
    options: pb.RerankOptions,
) -> pb.Result:
    passages = [
        pb.Passage(start=span.start, end=span.end, score=score, evidence=evidence)
        for span, score in zip(document.spans, document.chunk_scores, strict=True)
    ]
    deciding = passages[document.deciding_chunk]
    return pb.Result(
        id=doc_id,
        index=index,
        score=document.score,
        # A document without tokens has one chunk of no characters: nothing there decided.
        deciding_passage=deciding if deciding.end > deciding.start else None,
        chunks=passages if options.return_chunk_scores else (),
        text=text if options.return_texts else None,
        tokens_cut=document.tokens_cut,
    )
