"""Configured rankers become lanes: loaded, warmed up, their speed measured."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from farrank_rankers.ensemble import is_ensemble, member_folders
from farrank_rankers.errors import RankerError
from farrank_rankers.ranker import Ranker
from farrank_rankers.sources import open_ranker
from farrank_runtimes.interface import DeviceAbsent, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_server.batching.batcher import Batcher, BatchPolicy
from farrank_server.config import RankerConfig, ServerConfig
from farrank_server.engine.cache import DocumentCache
from farrank_server.engine.ensemble import EnsembleLanes
from farrank_server.engine.lane import Lane
from farrank_server.engine.speed import Speed
from farrank_server.errors import ConfigError

log = logging.getLogger(__name__)


def load_rankers(config: ServerConfig, cache: DocumentCache) -> tuple[list[Lane], list[EnsembleLanes]]:
    """Load every configured ranker onto the device and warm it up, each member of an ensemble, too.

    Raises: ConfigError naming the ranker and what is wrong with it.
    """
    log.info("loading %s", ", ".join(config.rankers))
    lanes: list[Lane] = []
    ensembles: list[EnsembleLanes] = []
    for name, source in config.rankers.items():
        members = _members(name, source)
        taken = [lane.name for lane in lanes if lane.name in members]
        if taken:
            raise ConfigError(f"rankers.{name}: its member {taken[0]} has the name of another ranker")
        loaded = [_load_lane(each, member, config, cache) for each, member in members.items()]
        lanes += loaded
        if list(members) != [name]:
            ensembles.append(EnsembleLanes(name, tuple(loaded)))
    return lanes, ensembles


def _members(name: str, source: RankerConfig) -> dict[str, RankerConfig]:
    """Name an ensemble's members as rankers of their own; any other ranker is its only member."""
    try:
        if not is_ensemble(source.source, download=source.download):
            return {name: source}
        folders = member_folders(source.source, source.download)
    except RankerError as error:
        raise ConfigError(f"rankers.{name}: {error}") from error
    return {f"{name}/{member}": replace(source, source=str(folder)) for member, folder in folders.items()}


def _load_lane(name: str, source: RankerConfig, config: ServerConfig, cache: DocumentCache) -> Lane:
    started_s = time.monotonic()
    ranker = _open(name, source)
    # Before the runtime changes the weights' precision, which is no part of the version.
    version = ranker.version
    runtime = _runtime(ranker, source, config)
    capabilities = runtime.capabilities()
    longest = ranker.reader.max_input_tokens
    max_batch_tokens = config.batching.max_batch_tokens or max(capabilities.max_batch_tokens, longest)
    if max_batch_tokens < longest:
        raise ConfigError(
            f"batching.max_batch_tokens: {max_batch_tokens} is too small for ranker {name}, "
            f"whose longest input has {longest} tokens"
        )
    tokens_per_s = runtime.warm_up()
    log.info(
        "ranker %s (%s, version %s) ready in %.1f s: %s on %s in %s, %.0f tokens/s",
        name,
        ranker.spec.family,
        version,
        time.monotonic() - started_s,
        capabilities.runtime,
        capabilities.device,
        capabilities.precision,
        tokens_per_s,
    )
    policy = BatchPolicy(max_batch_tokens, config.batching.max_padding_ratio, config.batching.window_batches)
    return Lane(
        name=name,
        version=version,
        spec=ranker.spec,
        reader=ranker.reader,
        evidence=ranker.aggregator.evidence,
        runtime=runtime,
        load=_loader(name, source, config),
        batcher=Batcher(policy),
        speed=Speed(tokens_per_s),
        cache=cache if ranker.spec.plan == "dual" else None,
    )


def _loader(name: str, source: RankerConfig, config: ServerConfig) -> Callable[[], Runtime]:
    """Make what brings the ranker back after its device was lost."""

    def load() -> Runtime:
        runtime = _runtime(_open(name, source), source, config)
        runtime.warm_up()
        return runtime

    return load


def _runtime(ranker: Ranker, source: RankerConfig, config: ServerConfig) -> Runtime:
    try:
        return TorchRuntime(ranker, source.precision, config.device.name, config.device.threads)
    except DeviceAbsent as error:
        raise ConfigError(f"device.name: {error}") from error


def _open(name: str, source: RankerConfig) -> Ranker:
    try:
        return open_ranker(
            source.source,
            family=source.family,
            max_query_tokens=source.max_query_tokens,
            max_document_tokens=source.max_document_tokens,
            window=source.window,
            stride=source.stride,
            download=source.download,
        )
    except (RankerError, OSError) as error:
        raise ConfigError(f"rankers.{name}: {error}") from error
