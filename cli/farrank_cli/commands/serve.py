"""`farrank serve`: read the configuration and answer calls until told to stop."""

import argparse
import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from farrank_cli.exit_codes import DONE, told_in_a_line
from farrank_cli.flags import flag, pair
from farrank_rankers.errors import RankerError
from farrank_server.config import sources as config_sources
from farrank_server.config.schema import ServerConfig
from farrank_server.config.sources import EVERY, Setting
from farrank_server.errors import ConfigError

# Each flag of its own: the key it sets, and its help; --set reaches all the other keys.
_KEYS = {
    "--host HOST": (("listen", "host"), "address to listen at"),
    "--port PORT": (("listen", "port"), "port to listen at; 0 takes a free one"),
    "--http-port PORT": (("listen", "http", "port"), "port of HTTP; none serves none, as without it"),
    "--metrics-port PORT": (("listen", "metrics_port"), "port of the Prometheus metrics; none serves none"),
    "--device NAME": (("device", "name"), "what runs the rankers: cpu, cuda:0 (the best there is)"),
    "--threads N": (("device", "threads"), "threads of a cpu device"),
    "--runtime NAME": (
        ("rankers", EVERY, "runtime"),
        "what runs every ranker: torch, onnx, openvino, tensorrt or auto (the fastest there is)",
    ),
    "--precision P": (
        ("rankers", EVERY, "precision"),
        "precision of every ranker: fp32, bf16, or fp16, int8 of exports",
    ),
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
    add = partial(flag, parser)
    add("--config FILE", "configuration, .yaml or .toml", Path)
    add("--ranker NAME=SOURCE", "a folder, a hub name, 'embedded' or 'embedded:NAME'", repeated=True)
    add("--index NAME=PATH", "an index to search; see farrank index", repeated=True)
    for form, (_, meaning) in _KEYS.items():
        add(form, meaning)
    add(
        "--export WHEN",
        "auto: export each ranker in its fastest precision that keeps its bound, at the first start; "
        "never: serve what there is",
        choices=("auto", "never"),
        default="never",
    )
    add("--set KEY=VALUE", "any key, such as listen.port=0", repeated=True)
    add("--pid-file FILE", "where to write the process id; farrank reload finds the server by it", Path)
    add("--print-config", "print the effective configuration as YAML, and end")
    add("--dry-run", "check everything that can be checked without loading, and end")
    add("--log-level", "how much to log", choices=_LEVELS, default="info")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it, and say how that went.

    Raises: CommandError, one line that names key and source, if the configuration is wrong;
    ModuleNotFoundError if the server extra is not installed.
    """
    # The server's room goes first: without its extra, nothing said about the configuration helps.
    from farrank_server.run import run as serve

    with told_in_a_line(ConfigError):
        settings = read_settings(args, os.environ)
        config = config_sources.build(ServerConfig, settings)
        if args.dry_run:
            from farrank_server.replica import check

            check(config)
    if args.print_config:
        print(config_sources.to_yaml(config, settings), end="")
    elif args.dry_run:
        print("the configuration can be served")
    if args.print_config or args.dry_run:
        return DONE
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if args.export == "auto":
        from farrank_cli.exporting import exported_rankers
        from farrank_runtimes.runtime import DeviceAbsent

        with told_in_a_line(RankerError, DeviceAbsent):
            config = exported_rankers(config)
    return serve(config, args.pid_file)


def read_settings(args: argparse.Namespace, environment: Mapping[str, str]) -> list[Setting]:
    """Read file, environment and flags, each overriding the one before.

    Raises: ConfigError naming what cannot be read; CommandError naming a flag that is no pair.
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
    for given in args.set:
        name, value = pair("--set KEY=VALUE", given, empty=True)  # a prefix may be empty
        settings.append(Setting(tuple(name.split(".")), value, f"--set {given}"))
    return settings
