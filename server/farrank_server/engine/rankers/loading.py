"""Configured rankers are loaded and warmed up, and their speed is measured."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from farrank_rankers.ensemble import is_ensemble, member_folders
from farrank_rankers.errors import AttentionAbsent, RankerError
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_runtimes.runtime import (
    DeviceAbsent,
    PackingAbsent,
    Placement,
    PrecisionAbsent,
    Runtime,
    RuntimeAbsent,
)
from farrank_server.batching.batcher import BatchPolicy
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.engine.admission.estimates import Speeds
from farrank_server.engine.ensemble import LoadedEnsemble
from farrank_server.engine.rankers.document_cache import DocumentCache
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.errors import ConfigError

log = logging.getLogger(__name__)


def load_rankers(
    config: ServerConfig, cache: DocumentCache
) -> tuple[list[LoadedRanker], list[LoadedEnsemble]]:
    """Load every configured ranker onto the device and warm it up, each member of an ensemble, too.

    Raises: ConfigError naming the ranker and what is wrong with it.
    """
    log.info("loading %s", ", ".join(config.rankers))
    rankers: list[LoadedRanker] = []
    ensembles: list[LoadedEnsemble] = []
    for name, source in config.rankers.items():
        members = _members(name, source)
        taken = [ranker.name for ranker in rankers if ranker.name in members]
        if taken:
            raise ConfigError(f"rankers.{name}: its member {taken[0]} has the name of another ranker")
        loaded = [_load_lane(each, member, config, cache) for each, member in members.items()]
        rankers += loaded
        if list(members) != [name]:
            ensembles.append(LoadedEnsemble(name, tuple(loaded)))
    return rankers, ensembles


def check_rankers(config: ServerConfig) -> None:
    """Check the files, specs and tokenizers of all rankers that need no download, without loading weights.

    Raises: ConfigError with every problem.
    """
    problems: list[str] = []
    for name, source in config.rankers.items():
        if source.download:
            continue
        try:
            for member in _members(name, source).values():
                open_reader(member.source, **_overrides(member))
        except ConfigError as error:
            problems += error.problems
        except (RankerError, OSError) as error:
            problems.append(f"rankers.{name}: {error}")
    if problems:
        raise ConfigError(*problems)


def _members(name: str, source: RankerConfig) -> dict[str, RankerConfig]:
    """Name an ensemble's members as rankers of their own; any other ranker is its only member."""
    try:
        if not is_ensemble(source.source, download=source.download):
            return {name: source}
        folders = member_folders(source.source, source.download)
    except RankerError as error:
        raise ConfigError(f"rankers.{name}: {error}") from error
    return {f"{name}/{member}": replace(source, source=str(folder)) for member, folder in folders.items()}


def _load_lane(name: str, source: RankerConfig, config: ServerConfig, cache: DocumentCache) -> LoadedRanker:
    started_s = time.monotonic()
    served = _open(name, source, config)
    reader, runtime = served.reader, served.runtime
    capabilities = runtime.capabilities()
    longest = reader.max_input_tokens
    max_batch_tokens = config.batching.max_batch_tokens or max(capabilities.max_batch_tokens, longest)
    if max_batch_tokens < longest:
        raise ConfigError(
            f"batching.max_batch_tokens: {max_batch_tokens} is too small for ranker {name}, "
            f"whose longest input has {longest} tokens"
        )
    try:
        tokens_per_s = runtime.warm_up()
    except AttentionAbsent as error:  # known only once a pattern asks for it
        raise ConfigError(f"rankers.{name}.packing: {error}") from error
    log.info(
        "ranker %s (%s, version %s) ready in %.1f s: %s on %s in %s, %s, %.0f tokens/s (%s)",
        name,
        reader.spec.family,
        served.version,
        time.monotonic() - started_s,
        capabilities.runtime,
        capabilities.device,
        capabilities.precision,
        "packed" if capabilities.packed else "padded",
        tokens_per_s,
        served.reason,
    )
    policy = BatchPolicy(
        max_batch_tokens,
        config.batching.max_padding_ratio,
        config.batching.window_batches,
        capabilities.packed,
    )
    return LoadedRanker(
        name=name,
        version=served.version,
        spec=reader.spec,
        reader=reader,
        evidence=served.evidence,
        runtime=runtime,
        capabilities=capabilities,
        load=_loader(name, source, config),
        load_s=time.monotonic() - started_s,
        policy=policy,
        speeds=Speeds.measured(tokens_per_s),
        cache=cache if reader.spec.plan == "dual" else None,
        probe=_probe(reader),
        runtime_reason=served.reason,
        parity=served.parity,
    )


def _probe(reader: Reader) -> EncoderInput:
    """Make an input that no caller brought."""
    (chunk,) = reader.split(reader.read_document("a text that is known to be good"), max_chunks=1)
    return reader.chunk_input(None if reader.spec.plan == "dual" else reader.read_query("a query"), chunk)


def _loader(name: str, source: RankerConfig, config: ServerConfig) -> Callable[[], Runtime]:
    """Make what brings the ranker back after its device was lost."""

    def load() -> Runtime:
        runtime = _open(name, source, config).runtime
        runtime.warm_up()
        return runtime

    return load


def _open(name: str, source: RankerConfig, config: ServerConfig) -> ServableRanker:
    device = config.device
    try:
        return open_ranker_runtime(
            source.source,
            _overrides(source),
            runtime=source.runtime,
            precision=source.precision,
            placement=Placement(
                device.name,
                device.threads,
                config.batching.max_batch_tokens,
                packing=source.packing,
                compile=device.compile,
            ),
        )
    except DeviceAbsent as error:
        raise ConfigError(f"device.name: {error}") from error
    except RuntimeAbsent as error:
        raise ConfigError(f"rankers.{name}.runtime: {error}") from error
    except PrecisionAbsent as error:
        raise ConfigError(f"rankers.{name}.precision: {error}") from error
    except PackingAbsent as error:
        raise ConfigError(f"rankers.{name}.packing: {error}") from error
    except (RankerError, OSError) as error:
        raise ConfigError(f"rankers.{name}: {error}") from error


def _overrides(source: RankerConfig) -> Overrides:
    return Overrides(
        family=source.family,
        max_query_tokens=source.max_query_tokens,
        max_document_tokens=source.max_document_tokens,
        window=source.window,
        stride=source.stride,
        download=source.download,
    )
