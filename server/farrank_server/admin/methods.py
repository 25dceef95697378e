"""The methods of the operator's contract: each checks its request and changes the rankers."""

import re
from dataclasses import MISSING
from typing import Any

from farrank.v1 import admin_pb2 as pb
from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import RankerConfig
from farrank_server.service.comparison import MAX_LATENCY_RATIO, MIN_TAU, Comparison, RecordedQuery, Trial
from farrank_server.service.memory_budget import bytes_of
from farrank_server.service.rankers import Rankers
from farrank_settings.errors import ConfigError
from farrank_settings.sources import Setting, build

SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"]

MAX_QUERIES = 10_000

_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
_ROLES = {"serving": pb.VERSION_ROLE_SERVING, "canary": pb.VERSION_ROLE_CANARY}


class AdminMethods:
    """The service of `admin.proto`. Its methods have the names of the contract. Belongs to the event loop.

    Each raises the errors of `farrank_calls.errors`, or ConfigError if a ranker cannot be loaded.
    """

    def __init__(self, rankers: Rankers, max_bytes: int | None) -> None:
        self._rankers, self._max_bytes = rankers, max_bytes

    async def ListVersions(self, request: pb.ListVersionsRequest) -> pb.ListVersionsResponse:
        """List the loaded versions."""
        versions = [
            pb.VersionInfo(
                name=each.scorer.name,
                version=each.scorer.version,
                role=_ROLES[each.role],
                share=each.share,
                source=each.entry.source,
                weight_bytes=bytes_of(each.scorer),
                calls_in_flight=max(member.calls for member in each.scorer.members),
                configured=each.is_configured,
            )
            for each in self._rankers.describe()
        ]
        return pb.ListVersionsResponse(
            versions=versions, weight_bytes=self._rankers.weight_bytes(), max_weight_bytes=self._max_bytes
        )

    async def LoadRanker(self, request: pb.LoadRankerRequest) -> pb.LoadRankerResponse:
        """Load a ranker under a new name."""
        if not _NAME.fullmatch(request.name):
            raise InvalidArgument(
                f"name: is {request.name[:100]!r}; it must be 1 to 100 letters, digits and . _ -"
            )
        scorer = await self._rankers.load(request.name, _entry(request.source, MISSING))
        return pb.LoadRankerResponse(version=scorer.version)

    async def UnloadRanker(self, request: pb.UnloadRankerRequest) -> pb.UnloadRankerResponse:
        """Serve a ranker no longer."""
        await self._rankers.unload(request.name)
        return pb.UnloadRankerResponse()

    async def SwapRanker(self, request: pb.SwapRankerRequest) -> pb.SwapRankerResponse:
        """Replace a ranker by a version that is loaded, or by its canary."""
        found = None
        if request.HasField("source"):
            entry = self._entry_beside(request.name, request.source)
            found = await self._rankers.swap(request.name, entry, _trial(request))
        else:
            _check_no_trial(request)
            await self._rankers.promote(request.name)
        version = self._rankers.version_of(request.name)
        return pb.SwapRankerResponse(version=version, comparison=_comparison(found))

    async def StartCanary(self, request: pb.StartCanaryRequest) -> pb.StartCanaryResponse:
        """Give a version that is loaded, or the canary, a share of the calls."""
        if not 0 <= request.share <= 1:
            raise InvalidArgument(f"share: is {request.share:g}; it must be from 0 to 1")
        found = None
        if request.HasField("source"):
            entry = self._entry_beside(request.name, request.source)
            found = await self._rankers.begin_canary(request.name, entry, request.share, _trial(request))
        else:
            _check_no_trial(request)
            await self._rankers.change_share(request.name, request.share)
        version = self._rankers.version_of(request.name, "canary")
        return pb.StartCanaryResponse(version=version, comparison=_comparison(found))

    async def StopCanary(self, request: pb.StopCanaryRequest) -> pb.StopCanaryResponse:
        """Give all calls to the version that serves."""
        await self._rankers.end_canary(request.name)
        return pb.StopCanaryResponse()

    def _entry_beside(self, name: str, source: pb.RankerSource) -> RankerConfig:
        """Build the entry of a further version from that of the ranker. Raises: NotFound; InvalidArgument."""
        return _entry(source, self._rankers.entry(name))


def _entry(source: pb.RankerSource, standing: Any) -> RankerConfig:
    """Build a ranker's entry; keys that the source lacks are those of `standing`. Raises: InvalidArgument."""
    if not source.source:
        raise InvalidArgument("source.source: is empty; it must be a folder, a hub name or embedded")
    if "source" in source.settings:
        raise InvalidArgument("source.settings: has the key source, which stands beside them")
    settings = [Setting(("source",), source.source, "source")]
    settings += [Setting(tuple(key.split(".")), value, "source") for key, value in source.settings.items()]
    try:
        return build(RankerConfig, settings, standing=standing)
    except ConfigError as error:
        raise InvalidArgument("; ".join(f"source.settings.{each}" for each in error.problems)) from None


def _trial(request: pb.SwapRankerRequest | pb.StartCanaryRequest) -> Trial | None:
    """Read the recorded queries and their bounds; None without any. Raises: InvalidArgument."""
    if not request.HasField("trial"):
        return None
    trial = request.trial
    if not 1 <= len(trial.queries) <= MAX_QUERIES:
        raise InvalidArgument(
            f"trial.queries: has {len(trial.queries)} entries; it must have 1 to {MAX_QUERIES}"
        )
    for number, each in enumerate(trial.queries):
        if not each.query.strip():
            raise InvalidArgument(f"trial.queries[{number}].query: is empty; it must hold at least one word")
        if len(each.documents) < 2:
            raise InvalidArgument(
                f"trial.queries[{number}].documents: has {len(each.documents)} entries; it must "
                "have at least 2"
            )
    min_tau = trial.min_tau if trial.HasField("min_tau") else MIN_TAU
    if not -1 <= min_tau <= 1:
        raise InvalidArgument(f"trial.min_tau: is {min_tau:g}; it must be from -1 to 1")
    max_ratio = trial.max_latency_ratio if trial.HasField("max_latency_ratio") else MAX_LATENCY_RATIO
    if not max_ratio > 0:
        raise InvalidArgument(f"trial.max_latency_ratio: is {max_ratio:g}; it must be above 0")
    queries = [RecordedQuery(each.query, tuple(each.documents)) for each in trial.queries]
    return Trial(queries, min_tau, max_ratio)


def _check_no_trial(request: pb.SwapRankerRequest | pb.StartCanaryRequest) -> None:
    if request.HasField("trial"):
        raise InvalidArgument("trial: needs a source; the canary had its trial when it began")


def _comparison(found: Comparison | None) -> pb.Comparison | None:
    if found is None:
        return None
    return pb.Comparison(queries=found.queries, tau=found.tau, latency_ratio=found.latency_ratio)
