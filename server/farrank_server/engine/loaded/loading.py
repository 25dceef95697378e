"""Loads the configured rankers, warms them up and measures their speed."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.ensemble import is_ensemble, member_folders
from farrank_rankers.errors import AttentionAbsent, RankerError
from farrank_rankers.exports.published_files import named_published
from farrank_rankers.files.answering_models import describe_prompt
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import open_reader
from farrank_rankers.spec import RankerSpec
from farrank_runtimes.batcher import PADDING_RATIO, PADDING_RATIO_IN_PARTS, BatchPolicy
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_runtimes.document_groups import gathered
from farrank_runtimes.runtime import (
    DeviceAbsent,
    PackingAbsent,
    Placement,
    PrecisionAbsent,
    Runtime,
    RuntimeAbsent,
)
from farrank_server.config.schema import DepthConfig, RankerConfig, ServerConfig
from farrank_server.engine.admission.estimates import Speeds
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.ranker import LoadedEnsemble, LoadedRanker, Scorer
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# The configuration key that each error names. Any other error names the ranker.
TO_BLAME: dict[type[Exception], str] = {
    DeviceAbsent: "device.name",
    RuntimeAbsent: "rankers.{name}.runtime",
    PrecisionAbsent: "rankers.{name}.precision",
    PackingAbsent: "rankers.{name}.packing",
}


def load_rankers(config: ServerConfig, cache: DocumentCache) -> list[Scorer]:
    """Load every configured ranker, and each member of an ensemble, onto the device and warm it up.

    Raises: ConfigError naming the ranker and the problem.
    """
    log.info("loading %s", ", ".join(config.rankers))
    configured = {name: _members(name, source) for name, source in config.rankers.items()}
    check_names(configured)
    return [_load_scorer(name, members, config, cache) for name, members in configured.items()]


def load_beside(name: str, config: ServerConfig, cache: DocumentCache) -> Scorer:
    """Load one configured ranker, and its members, while the device runs batches of others.

    On a CPU it is not warm yet, and its speed is not known: `warm_up_in_turns` follows. A GPU runs its
    batches beside those of calls, since kernels may have to be compiled first, which takes long.
    Raises: ConfigError.
    """
    return _load_scorer(name, _members(name, config.rankers[name]), config, cache, is_beside=True)


def _load_scorer(
    name: str,
    members: Mapping[str, RankerConfig],
    config: ServerConfig,
    cache: DocumentCache,
    *,
    is_beside: bool = False,
) -> Scorer:
    loaded: list[LoadedRanker] = []
    try:
        for each, member in members.items():
            loaded.append(_load(each, member, config, cache, is_beside=is_beside))
        depth = depth_of(name, config.rankers[name], [member.spec for member in loaded])
    except BaseException:
        for done in loaded:
            done.release()
        raise
    for done in loaded:
        done.depth = depth
    return loaded[0] if list(members) == [name] else LoadedEnsemble(name, tuple(loaded))


def check_names(rankers: Mapping[str, Iterable[str]]) -> None:
    """Check that no member of an ensemble, NAME/MEMBER, has the name of another ranker.

    `rankers` maps each ranker to the names of its members. Raises: ConfigError.
    """
    seen: set[str] = set()
    for name, members in rankers.items():
        if taken := seen & {*members}:
            raise ConfigError(f"rankers.{name}: its member {min(taken)} has the name of another ranker")
        seen |= {*members}


def depth_of(name: str, source: RankerConfig, members: Sequence[RankerSpec]) -> DepthConfig:
    """Choose a ranker's depth: as configured, else adaptive if it can be. Raises: ConfigError."""
    why = why_not_adaptive(*members)
    if source.depth is not None and source.depth.is_adaptive and why is not None:
        raise ConfigError(f"rankers.{name}.depth.mode: cannot be adaptive: {why}")
    return source.depth or DepthConfig("all" if why else "adaptive")


def check_rankers(config: ServerConfig) -> None:
    """Check the files, specs and tokenizers of all rankers that need no download, without loading weights.

    Raises: ConfigError with every problem.
    """
    problems: list[str] = []
    found: dict[str, Iterable[str]] = {}
    for name, source in config.rankers.items():
        if source.download:
            continue
        try:
            found[name] = members = _members(name, source)
            specs = []
            for member in members.values():
                specs.append(open_reader(member.source, **member.overrides).spec)
                if member.export_file is not None:
                    named_published(ModelFiles.find(locate(member.source)), member.export_file)
            depth_of(name, source, specs)
        except ConfigError as error:
            problems += error.problems
        except (RankerError, OSError) as error:
            problems.append(f"rankers.{name}: {error}")
    try:
        check_names(found)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _members(name: str, source: RankerConfig) -> dict[str, RankerConfig]:
    """Return an ensemble's members as rankers of their own. Any other ranker is its own only member."""
    try:
        if not is_ensemble(source.source, download=source.download):
            return {name: source}
        folders = member_folders(source.source, source.download)
    except RankerError as error:
        raise ConfigError(f"rankers.{name}: {error}") from error
    return {f"{name}/{member}": replace(source, source=str(folder)) for member, folder in folders.items()}


def _load(
    name: str, source: RankerConfig, config: ServerConfig, cache: DocumentCache, *, is_beside: bool
) -> LoadedRanker:
    started_s = time.monotonic()
    served = _open(name, source, config)
    reader, runtime = served.reader, served.runtime
    runs = runtime.capabilities()
    longest = reader.max_input_tokens
    max_batch_tokens = config.batching.max_batch_tokens or max(runs.max_batch_tokens, longest)
    if max_batch_tokens < longest:
        raise ConfigError(
            f"batching.max_batch_tokens: {max_batch_tokens} is too small for ranker {name}, "
            f"whose longest input has {longest} tokens"
        )
    in_turns = is_beside and runs.device == "cpu"
    try:
        tokens_per_s = 0.0 if in_turns else runtime.warm_up()
    except AttentionAbsent as error:  # found only when a pattern needs it
        raise ConfigError(f"rankers.{name}.packing: {error}") from error
    is_dual = reader.spec.plan == "dual"
    # A fixed input, independent of callers.
    (chunk,) = reader.split(reader.read_document("a text that is known to be good"), max_chunks=1)
    query = reader.read_query("a query")
    probe = reader.chunk_input(None if is_dual else query, chunk)

    def check_score(loaded: Runtime) -> None:
        """Refuse a runtime whose scores are not finite. Raises: ConfigError."""
        inputs = [reader.query_input(query), probe] if is_dual else [probe]
        *queries, features = loaded.encode(inputs).rows()
        found = loaded.score([gathered([features])], queries or None)
        if not all(map(math.isfinite, (*found.scores, *found.chunk_scores[0]))):
            raise ConfigError(
                f"rankers.{name}: gives a document the score {found.scores[0]}, which is not a finite "
                f"number: its weights or its export are damaged, or its values exceed the range of "
                f"{runs.precision}"
            )

    if not in_turns:
        check_score(runtime)
    packing = "packed" if runs.packed else "padded"
    where = f"{runs.runtime} on {runs.device} in {runs.precision}, {packing}"
    version = served.version
    if config.first_stage.indexes:
        # Each reload of the indexes compares this digest while calls are served: compute it now.
        reader.tokenizer.digest  # noqa: B018  # computed and cached
    message = "ranker %s (%s, version %s) %s in %.1f s: %s, %s (%s)"
    load_s = time.monotonic() - started_s
    state = "read" if in_turns else "ready"
    speed = "to be warmed up" if in_turns else f"{tokens_per_s:.0f} tokens/s"
    log.info(message, name, reader.spec.family, version, state, load_s, where, speed, served.reason)
    if (prompt := describe_prompt(reader.spec)) is not None:
        log.info("ranker %s asks with the %s", name, prompt)

    def load() -> Runtime:
        again = _open(name, source, config)
        fresh = again.runtime
        if again.version != version:
            fresh.close()
            raise ConfigError(
                f"rankers.{name}: its files were replaced while it was served: they hold version "
                f"{again.version} instead of {version}; reload the server to serve them"
            )
        fresh.warm_up()
        check_score(fresh)
        return fresh

    batching = config.batching
    padding = batching.max_padding_ratio or (PADDING_RATIO if runs.parts == 1 else PADDING_RATIO_IN_PARTS)
    return LoadedRanker(
        name=name,
        version=version,
        encodings_version=served.encodings_version,
        spec=reader.spec,
        reader=reader,
        evidence=served.evidence,
        runtime=runtime,
        capabilities=runs,
        load=load,
        check_score=check_score,
        load_s=load_s,
        policy=BatchPolicy(
            *(max_batch_tokens, padding, batching.window_batches),
            *(runs.packed, runs.parts, runs.length_step),
        ),
        speeds=Speeds.measured(tokens_per_s),
        cache=cache if is_dual else None,
        probe=probe,
        runtime_reason=served.reason,
        parity=served.parity,
    )


def _open(name: str, source: RankerConfig, config: ServerConfig) -> ServableRanker:
    device, max_batch_tokens = config.device, config.batching.max_batch_tokens
    placement = Placement(device.name, device.threads, max_batch_tokens, source.packing, device.compile)
    try:
        return open_ranker_runtime(
            source.source,
            source.overrides,
            runtime=source.runtime,
            precision=source.precision,
            placement=placement,
            export_file=source.export_file,
        )
    except (DeviceAbsent, RuntimeAbsent, PrecisionAbsent, PackingAbsent, RankerError, OSError) as error:
        key = TO_BLAME.get(type(error), "rankers.{name}").format(name=name)
        raise ConfigError(f"{key}: {error}") from error
