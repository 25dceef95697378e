"""`farrank serve`: read the configuration and answer calls until a signal ends it."""

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.export_limits import ExportLimits, add_export_limits
from farrank_cli.flags import flag, pair
from farrank_cli.terminal import counted
from farrank_rankers.errors import RankerError
from farrank_rankers.files.answering_models import describe_prompt
from farrank_server.config.schema import DepthConfig, ServerConfig
from farrank_server.config.server_config import build_config
from farrank_settings import sources as config_sources
from farrank_settings.errors import ConfigError
from farrank_settings.sources import EVERY, Setting

if TYPE_CHECKING:
    from farrank_server.engine.loaded.ranker import LoadedRanker
    from farrank_server.rehearsal import RehearsalResult

_LOG_LEVEL = ("logging", "level")

# Keys with their own flag: flag -> key and help; --set reaches all other keys.
_KEYS = {
    "--host HOST": (("listen", "host"), "address to listen on"),
    "--port PORT": (("listen", "port"), "port of gRPC; 0 takes a free one"),
    "--http-port PORT": (("listen", "http", "port"), "port of HTTP; none, the default, disables HTTP"),
    "--metrics-port PORT": (("listen", "metrics_port"), "port of the Prometheus metrics; none disables it"),
    "--keys FILE": (("listen", "keys"), "file of the API keys that callers must send; see farrank keys"),
    "--device NAME": (("device", "name"), "device of the rankers: cpu, cuda:0 (the best available)"),
    "--threads N": (("device", "threads"), "threads of a cpu device"),
    "--runtime NAME": (
        ("rankers", EVERY, "runtime"),
        "runtime of every ranker: torch, onnx, openvino, tensorrt or auto (the fastest available)",
    ),
    "--precision P": (
        ("rankers", EVERY, "precision"),
        "precision of every ranker: fp32, bf16, or for exports fp16, int8",
    ),
    "--log-level LEVEL": (
        _LOG_LEVEL,
        "lowest level to log: debug, info, warning or error (info; with --check warning)",
    ),
    "--log-format FORMAT": (("logging", "format"), "text, or json for one JSON object per line (text)"),
}


_JUDGEMENTS = "--judgements INDEX=QUESTIONS,QRELS"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags; values stay text, which the configuration checks."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Every key of the configuration can be set in the file, in the environment\n"
        "(FARRANK_LISTEN__PORT=0, two underscores between levels) and with --set listen.port=0;\n"
        "the environment overrides the file, and flags override both."
    )
    add = partial(flag, parser)
    add_settings(add)
    add(
        "--export WHEN",
        "auto: at the first start, export each ranker in the fastest precision that keeps its bound; "
        "never: serve existing exports or weights",
        choices=("auto", "never"),
        default="never",
    )
    add_export_limits(add)
    add("--pid-file FILE", "file for the process id, by which farrank reload finds the server", Path)
    add("--watch", "reload when the configuration's file or the files of a ranker change")
    add("--print-config", "print the effective configuration as YAML, and end")
    add("--dry-run", "check everything that can be checked without loading, and end")
    add(
        "--check",
        "load and open everything, print what would be served and by which runtime, or all problems, and end",
    )


def add_settings(add: Callable[..., None]) -> None:
    """Add the flags that `read_settings` reads."""
    add("--config FILE", "configuration, .yaml or .toml", Path)
    add("--ranker NAME=SOURCE", "a folder, a hub name, 'embedded' or 'embedded:NAME'", repeated=True)
    add("--index NAME=PATH", "an index to search; see farrank index", repeated=True)
    for form, (_, meaning) in _KEYS.items():
        add(form, meaning)
    add(_JUDGEMENTS, "questions (TSV) and qrels of an index, for the page", repeated=True)
    add("--set KEY=VALUE", "any key, such as listen.port=0", repeated=True)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it, and return the exit code.

    Raises: CommandError, one line that names key and source, if the configuration is wrong;
    ModuleNotFoundError if the server extra is not installed.
    """
    # Imported first: without the extra, messages about the configuration would not help.
    from farrank_calls.telemetry.log_output import configure_logging
    from farrank_server.run import run as serve

    with told_in_a_line(ConfigError):
        settings = read_settings(args, os.environ)
        config = build_config(settings)
        # Check first: an export may take minutes, and stops at the first ranker that cannot be opened.
        if args.dry_run or (args.check and args.export == "auto"):
            from farrank_server.replica import check

            check(config)
    if args.print_config:
        print(config_sources.to_yaml(config, settings), end="")
    elif args.dry_run and not args.check:
        print("the configuration can be served")
    if (args.print_config or args.dry_run) and not args.check:
        return DONE
    is_set = any(each.path == _LOG_LEVEL for each in settings)
    configure_logging(config.logging, "warning" if args.check and not is_set else None)
    if args.export == "auto":
        from farrank_cli.exporting import exported_rankers
        from farrank_runtimes.runtime import DeviceAbsent

        with told_in_a_line(RankerError, DeviceAbsent):
            config = exported_rankers(config, ExportLimits(args.export_minutes, args.export_memory))
    if args.check:
        from farrank_server.rehearsal import rehearse

        with told_in_a_line(ConfigError):
            rehearsed = asyncio.run(rehearse(config, args.pid_file))
        print(*_would_serve(config, rehearsed), sep="\n")
        return DONE
    look = partial(_state_of_file, args.config) if args.watch else None
    return serve(config, args.pid_file, partial(_configured, args), look)


def _state_of_file(path: Path | None) -> object:
    """A value that differs whenever the configuration's file does, also where a link to it moves."""
    from farrank_server.certificates import state_of

    return None if path is None else state_of(path)


def _configured(args: argparse.Namespace) -> ServerConfig:
    """Read the configuration. Raises: as `read_settings` and `build`."""
    return build_config(read_settings(args, os.environ))


def _would_serve(config: ServerConfig, rehearsed: "RehearsalResult") -> Iterator[str]:
    """Describe what a server with this configuration would serve, a line for each part."""
    listen = config.listen
    how = "plaintext" if listen.tls is None else "mTLS" if listen.tls.client_ca else "TLS"
    endpoints = {"gRPC": listen.port, "HTTP": listen.http.port, "metrics": listen.metrics_port}
    for endpoint, port in endpoints.items():
        place = "a free port" if port == 0 else f"port {port}"
        protected = "plaintext" if endpoint == "metrics" else how
        yield f"{endpoint}: " + ("none" if port is None else f"{listen.host}, {place}, {protected}")
    yield "keys: " + ("none, everybody may call" if listen.keys is None else _keys_line(listen.keys))
    for scorer in rehearsed.rankers:
        default = ", the default" if scorer.name == config.default_ranker else ""
        if [member.name for member in scorer.members] != [scorer.name]:
            mean = f"the mean of {len(scorer.members)}, version {scorer.version}"
            yield f"ranker {scorer.name}{default}: {mean}"
        for member in scorer.members:
            yield _ranker_line(member, default if member.name == scorer.name else "")
            if (prompt := describe_prompt(member.spec)) is not None:
                yield f"ranker {member.name} asks with the {prompt}"
    for index in rehearsed.indexes:
        yield f"index {index.name}: {counted(index.documents, 'document')}, {index.ranking}"
    yield "the configuration can be served"


def _keys_line(path: Path) -> str:
    from farrank_calls.key_file import read_keys

    keys = read_keys(path).values()
    ends_s = [each.expires_at_s for each in keys if each.expires_at_s is not None]
    expired = sum(each <= time.time() for each in ends_s)
    return f"{counted(len(keys), 'key')} of {path}" + (f", {expired} expired" if expired else "")


def _ranker_line(ranker: "LoadedRanker", default: str) -> str:
    runs = ranker.capabilities
    return (
        f"ranker {ranker.name}{default}: {ranker.spec.family}, version {ranker.version}, "
        f"{runs.runtime} on {runs.device} in {runs.precision}, {'packed' if runs.packed else 'padded'}, "
        f"now {ranker.tokens_per_s():,.0f} tokens/s ({ranker.runtime_reason})" + _plan_part(ranker)
    )


def _plan_part(ranker: "LoadedRanker") -> str:
    """Say which chunks adaptive depth reads by another plan than the default; empty if a budget decides."""
    plan = ranker.spec.depth
    if plan is None or ranker.depth != DepthConfig("adaptive"):
        return ""
    return f", reads {plan}" + (f", {plan.figures}" if plan.figures else "")


def read_settings(args: argparse.Namespace, environment: Mapping[str, str]) -> list[Setting]:
    """Read file, environment and flags, each overriding the one before.

    Raises: ConfigError naming the setting that cannot be read; CommandError naming a flag without a `=`.
    """
    settings = config_sources.from_file(args.config) if args.config else []
    settings += config_sources.from_environment(ServerConfig, environment)
    for form, (key, _) in _KEYS.items():
        name = form.partition(" ")[0]
        value = getattr(args, name.removeprefix("--").replace("-", "_"))
        if value is not None:
            settings.append(Setting(key, value, name))
    for given in args.ranker:
        name, value = pair("--ranker NAME=SOURCE", given)
        settings.append(Setting(("rankers", name, "source"), value, f"--ranker {given}"))
    for given in args.index:
        name, value = pair("--index NAME=PATH", given)
        settings.append(Setting(("first_stage", "indexes", name, "path"), value, f"--index {given}"))
    for given in args.judgements:
        name, value = pair(_JUDGEMENTS, given)
        files = value.split(",")
        if len(files) != 2 or not all(files):
            raise CommandError(f"--judgements {given}: must be INDEX=QUESTIONS,QRELS")
        for part, file in zip(("questions", "qrels"), files, strict=True):
            settings.append(
                Setting(("listen", "http", "judgements", name, part), file, f"--judgements {given}")
            )
    for given in args.set:
        name, value = pair("--set KEY=VALUE", given, empty=True)  # a prefix may be empty
        settings.append(Setting(tuple(name.split(".")), value, f"--set {given}"))
    return settings
