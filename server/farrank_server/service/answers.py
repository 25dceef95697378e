"""Turns results and descriptions into protobuf messages."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb
from farrank_first_stage import Candidate, IndexDescription
from farrank_rankers.family import ENSEMBLE, EvidenceKind
from farrank_server.access.callers import Caller
from farrank_server.config.schema import DepthConfig, LimitsConfig
from farrank_server.engine.call import InputDocument, RerankResult, ScoredDocument
from farrank_server.engine.loaded.ranker import LoadedEnsemble, Scorer
from farrank_server.engine.stored import Sources

Described = TypeVar("Described", bound=Message)
Response = pb.RerankResponse | pb.SearchAndRerankResponse
Scale = Callable[[float], float]

EVIDENCE = {
    EvidenceKind.CHUNK_SCORE: pb.EVIDENCE_CHUNK_SCORE,
    EvidenceKind.ATTENTION: pb.EVIDENCE_ATTENTION,
    EvidenceKind.LEAVE_ONE_OUT: pb.EVIDENCE_LEAVE_ONE_OUT,
}


def describe_scoring(response: Response, scorer: Scorer, options: pb.RerankOptions) -> None:
    """Name the ranker that scores, its runtime and precision, and the scale of its scores."""
    runs = [member.capabilities for member in scorer.members]
    response.ranker.name = scorer.name
    response.ranker.version = scorer.version
    response.ranker.runtime = _joined(each.runtime for each in runs)
    response.ranker.precision = _joined(each.precision for each in runs)
    response.score_scale = pb.SCORE_SCALE_SIGMOID if _is_sigmoid(options) else pb.SCORE_SCALE_RAW


def add_ranking(
    response: Response,
    result: RerankResult,
    scorer: Scorer,
    ids: Sequence[str],
    documents: Sequence[InputDocument],
    options: pb.RerankOptions,
) -> None:
    """Add the top `top_n` documents, best first and equals in request order, and what the call cost."""
    order = sorted(range(len(ids)), key=lambda index: result.documents[index].rank)
    stride = scorer.members[0].spec.chunking.stride
    evidence = EVIDENCE[scorer.evidence]
    on_scale: Scale = float
    on_passage_scale: Scale = float
    if _is_sigmoid(options):
        # A sum over the query's vectors grows with their number, and its sigmoid would be 1 for long queries.
        count = result.summed_vectors
        of_document, of_chunk = scorer.document_calibration, scorer.chunk_calibration
        on_scale = lambda raw: of_document.apply(raw / count)  # noqa: E731
        if evidence == pb.EVIDENCE_CHUNK_SCORE:
            on_passage_scale = lambda raw: of_chunk.apply(raw / count)  # noqa: E731
    scales = on_scale, on_passage_scale
    for index in order[: options.top_n or None]:
        scored, document = result.documents[index], documents[index]
        its = _result_to_pb(scored, index, ids[index], document.text, evidence, scales, options)
        its.characters = document.characters
        its.chunks_cut = scored.cut.chunks(stride)
        response.results.append(its)
    response.usage.rounds = result.rounds
    response.usage.ended_early = result.ended_early
    tally = result.tally
    response.query_tokens_cut = tally.query_tokens_cut
    for name in ("tokens", "chunks", "cached_chunks", "stored_documents", "pairs", "padded_tokens"):
        setattr(response.usage, name, getattr(tally, name))
    for name in ("tokenization_ns", "queue_ns", "inference_ns", "aggregation_ns", "selection_ns"):
        setattr(response.timings, name, getattr(tally, name))


def ranker_to_pb(ranker: Scorer, caller: Caller) -> pb.RankerInfo:
    """Describe a ranker; an ensemble by what its members share, or by the largest value of any member.

    Only members that the caller may use are named.
    """
    members = ranker.members
    first, specs = members[0], [member.spec for member in members]
    runs = [member.capabilities for member in members]
    info = pb.RankerInfo(
        name=ranker.name,
        version=ranker.version,
        family=first.spec.family,
        backbone=" + ".join(dict.fromkeys(spec.backbone for spec in specs)),
        max_query_tokens=max(spec.max_query_tokens for spec in specs),
        max_document_tokens=max(spec.chunking.max_document_tokens for spec in specs),
        window=first.spec.chunking.window,
        stride=first.spec.chunking.stride,
        runtime=_joined(each.runtime for each in runs),
        device=runs[0].device,
        precision=_joined(each.precision for each in runs),
        options={name: str(value) for name, value in asdict(first.spec.options).items()},
        runtime_reason=first.runtime_reason,
        parity=_described(pb.Parity, first.parity, texts=first.parity.documents) if first.parity else None,
        depth=_depth_to_pb(first.depth) if len({member.depth for member in members}) == 1 else None,
    )
    if isinstance(ranker, LoadedEnsemble):
        info.family = ENSEMBLE
        info.options.clear()
        named = [member for member in members if caller.may_rank(member.name)]
        info.options["members"] = ", ".join(member.name for member in named)
        info.runtime_reason = "; ".join(f"{member.name}: {member.runtime_reason}" for member in named)
        info.ClearField("parity")
    return info


def index_to_pb(
    index: IndexDescription, default_k: int, sources: Sources | None, caller: Caller
) -> pb.IndexInfo:
    """Describe an open index, and which rankers read the data stored with it.

    Only rankers and indexes that the caller may use are named.
    """
    return _described(
        pb.IndexInfo,
        index,
        first_stage=index.ranking,
        default_k=default_k,
        members=filter(caller.may_search, index.members),
        tokens_for=filter(caller.may_rank, sources.tokens_for if sources else ()),
        encodings_for=filter(caller.may_rank, sources.encodings_for if sources else ()),
    )


def add_first_stage_scores(
    response: pb.SearchAndRerankResponse, candidates: Sequence[Candidate], caller: Caller
) -> None:
    """Add each result's first-stage score, and for a fused index the score from each part.

    Only parts that the caller may use are named.
    """
    for each in response.results:
        candidate = candidates[each.index]
        each.first_stage_score = candidate.score
        parts = candidate.parts or {response.index: candidate.score}
        each.first_stage_scores.extend(
            pb.FirstStageScore(index=n, score=s) for n, s in parts.items() if caller.may_search(n)
        )


def limits_to_pb(limits: LimitsConfig, max_query_terms: int) -> pb.Limits:
    """The limits of a request as a message."""
    return _described(pb.Limits, limits, max_query_terms=max_query_terms)


def _described(message: type[Described], source: object, **others: Any) -> Described:
    """Fill a whole message: `others` as given, each other field from the source's attribute of that name."""
    names = message.DESCRIPTOR.fields_by_name.keys() - others.keys()
    return message(**others, **{name: getattr(source, name) for name in names})


def _result_to_pb(
    document: ScoredDocument,
    index: int,
    doc_id: str,
    text: str | None,
    evidence: "pb.Evidence",
    scales: tuple[Scale, Scale],
    options: pb.RerankOptions,
) -> pb.Result:
    on_scale, on_passage_scale = scales

    def passage(chunk: int) -> pb.Passage:
        start, end = document.spans[chunk].tolist()
        score = on_passage_scale(document.chunk_scores[chunk])
        return pb.Passage(start=start, end=end, score=score, evidence=evidence)

    # Other passages, of which a long document has many, are built only on request.
    deciding = passage(document.deciding_chunk)
    return pb.Result(
        id=doc_id,
        index=index,
        score=on_scale(document.score),
        # A document without tokens has one chunk without characters, which cannot have decided.
        deciding_passage=deciding if deciding.end > deciding.start else None,
        chunks=map(passage, range(len(document.spans))) if options.return_chunk_scores else (),
        text=text if options.return_texts else None,
        tokens_cut=document.cut.tokens,
        characters_cut=document.cut.characters,
        chunks_read=len(document.spans),
        chunks_scored=document.chunks_scored,
        round=document.round,
        token_matches=[pb.TokenMatch(**match._asdict()) for match in document.matches],
    )


def _depth_to_pb(depth: DepthConfig) -> pb.Depth:
    mode = pb.DEPTH_MODE_ADAPTIVE if depth.is_adaptive else pb.DEPTH_MODE_ALL
    return pb.Depth(mode=mode, chunks=depth.chunks, tokens=depth.tokens, milliseconds=depth.milliseconds)


def _is_sigmoid(options: pb.RerankOptions) -> bool:
    # An unknown scale counts as none set; the answer says which scale was used.
    return options.score_scale == pb.SCORE_SCALE_SIGMOID


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
