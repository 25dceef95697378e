"""What the engine answers to a call."""

from dataclasses import dataclass
from typing import Protocol

from farrank_rankers.family import EvidenceKind
from farrank_server.engine.job import DeviceTally, ReadTally, ScoredDocument


class Scorer(Protocol):
    """Who scored: one ranker's lane, or an ensemble's."""

    @property
    def name(self) -> str:
        """The name that callers use."""
        ...

    @property
    def version(self) -> str:
        """Hash of all that its scores depend on."""
        ...

    @property
    def evidence(self) -> EvidenceKind:
        """What its chunk scores mean."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a call. `documents` stand in the call's order, one each."""

    scorer: Scorer
    documents: tuple[ScoredDocument, ...]
    read: ReadTally
    tokenization_ns: int
    device: DeviceTally
