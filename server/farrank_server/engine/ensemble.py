"""Rankers that answer as one, by their mean score."""

from collections.abc import Sequence
from dataclasses import dataclass

from farrank_rankers.ensemble import ensemble_version, mean_score
from farrank_rankers.family import EvidenceKind
from farrank_server.engine.call import SCORE_DECIMALS, DeviceTally, ReadTally, RerankResult, ScoredDocument
from farrank_server.engine.rankers.loaded import LoadedRanker


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """An ensemble's members, the most trusted first: its chunks say which passage decided."""

    name: str
    members: tuple[LoadedRanker, ...]

    @property
    def version(self) -> str:
        """Hash of the members' versions."""
        return ensemble_version(member.version for member in self.members)

    @property
    def evidence(self) -> EvidenceKind:
        """What the chunk scores mean: the first member's."""
        return self.members[0].evidence


def mean_of_members(ensemble: LoadedEnsemble, outcomes: Sequence[RerankResult]) -> RerankResult:
    """Join what the members found of the same documents, and add up what it cost.

    Waiting in queues is not added up: the members waited at the same time.
    """
    documents = tuple(
        ScoredDocument(
            round(mean_score([found.score for found in each]), SCORE_DECIMALS),
            each[0].chunk_scores,
            each[0].spans,
            each[0].cut,
        )
        for each in zip(*(outcome.documents for outcome in outcomes), strict=True)
    )
    first = outcomes[0].read
    read = sum((outcome.read for outcome in outcomes), ReadTally())
    devices = [outcome.device for outcome in outcomes]
    return RerankResult(
        ensemble,
        documents,
        ReadTally(read.tokens, read.chunks, read.cached_chunks, first.query_tokens_cut),
        max(outcome.tokenization_ns for outcome in outcomes),
        DeviceTally(
            pairs=sum(device.pairs for device in devices),
            padded_tokens=sum(device.padded_tokens for device in devices),
            queue_ns=max(device.queue_ns for device in devices),
            inference_ns=sum(device.inference_ns for device in devices),
            aggregation_ns=sum(device.aggregation_ns for device in devices),
        ),
    )
