"""`farrank serve`: read the configuration and answer calls until told to stop."""

import argparse
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from farrank_cli.exit_codes import DONE, CommandError
from farrank_server.config import sources as config_sources
from farrank_server.config.schema import ServerConfig
from farrank_server.config.sources import EVERY, Setting
from farrank_server.errors import ConfigError

# Each flag of its own and the key it sets; --set reaches all the others.
_KEYS = {
    "--host": ("listen", "host"),
    "--port": ("listen", "port"),
    "--metrics-port": ("listen", "metrics_port"),
    "--device": ("device", "name"),
    "--threads": ("device", "threads"),
    "--runtime": ("rankers", EVERY, "runtime"),
    "--precision": ("rankers", EVERY, "precision"),
}
_LEVELS = ("debug", "info", "warning", "error")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags; values stay text, for the configuration's own checks to judge."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Every key of the configuration can be set in the file, in the environment\n"
        "(FARRANK_LISTEN__PORT=0, two underscores between levels) and with --set listen.port=0;\n"
        "the environment overrides the file, and flags override both."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration, .yaml or .toml")
    parser.add_argument(
        "--ranker",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="a folder, a hub name or 'embedded'",
    )
    parser.add_argument(
        "--index",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="an index to search; see farrank index",
    )
    parser.add_argument("--host", help="address to listen at")
    parser.add_argument("--port", help="port to listen at; 0 takes a free one")
    parser.add_argument(
        "--metrics-port", metavar="PORT", help="port of the Prometheus metrics; none serves none"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="what runs the rankers: cpu, cuda:0 (the best there is)"
    )
    parser.add_argument("--threads", metavar="N", help="threads of a cpu device")
    parser.add_argument(
        "--runtime",
        metavar="NAME",
        help="what runs every ranker: torch, onnx, openvino, tensorrt or auto (the fastest there is)",
    )
    parser.add_argument(
        "--precision", metavar="P", help="precision of every ranker: fp32, bf16, or fp16, int8 of exports"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any key, such as listen.port=0"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the effective configuration as YAML, and end"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything that can be checked without loading, and end"
    )
    parser.add_argument("--log-level", choices=_LEVELS, default="info", help="how much to log (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it, and say how that went.

    Raises: CommandError, one line that names key and source, if the configuration is wrong;
    ModuleNotFoundError if the server extra is not installed.
    """
    # The server's room goes first: without its extra, nothing said about the configuration helps.
    from farrank_server.run import run as serve

    try:
        settings = read_settings(args, os.environ)
        config = config_sources.build(ServerConfig, settings)
        if args.dry_run:
            from farrank_server.replica import check

            check(config)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    if args.print_config:
        print(config_sources.to_yaml(config, settings), end="")
    elif args.dry_run:
        print("the configuration can be served")
    if args.print_config or args.dry_run:
        return DONE
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return serve(config)


def read_config(args: argparse.Namespace, environment: Mapping[str, str]) -> ServerConfig:
    """Build the configuration from file, environment and flags.

    Raises: ConfigError naming the key and the source of everything that is wrong.
    """
    return config_sources.build(ServerConfig, read_settings(args, environment))


def read_settings(args: argparse.Namespace, environment: Mapping[str, str]) -> list[Setting]:
    """Read file, environment and flags, each overriding the one before.

    Raises: ConfigError naming what cannot be read.
    """
    from_file = config_sources.from_file(args.config) if args.config else []
    from_environment = config_sources.from_environment(ServerConfig, environment)
    return [*from_file, *from_environment, *_from_flags(args)]


def _from_flags(args: argparse.Namespace) -> list[Setting]:
    settings = []
    for flag, key in _KEYS.items():
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        if value is not None:
            settings.append(Setting(key, value, flag))
    for given in args.ranker:
        name, value = _pair("--ranker", given, "NAME=SOURCE")
        settings.append(Setting(("rankers", name, "source"), value, f"--ranker {given}"))
    for given in args.index:
        name, value = _pair("--index", given, "NAME=PATH")
        settings.append(Setting(("first_stage", "indexes", name, "path"), value, f"--index {given}"))
    for given in args.set:
        name, value = _pair("--set", given, "KEY=VALUE")
        settings.append(Setting(tuple(name.split(".")), value, f"--set {given}"))
    return settings


def _pair(flag: str, given: str, form: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"{flag} {given}: must be {form}")
    return name, value
