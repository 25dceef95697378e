"""`farrank scale`: deploy replicas on a Ray cluster, show their state and take them down."""

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from farrank_cli.commands.serve import add_settings, read_settings
from farrank_cli.exit_codes import DONE, REFUSED, TRY_AGAIN, CommandError, told_in_a_line
from farrank_cli.flags import add_commands, at_least, flag, not_negative, positive
from farrank_client import Client
from farrank_client.errors import FarrankError
from farrank_server.config.server_config import build_config
from farrank_settings.errors import ConfigError

HEALTHY_S = 30.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their flags."""
    commands = add_commands(
        parser,
        {
            "up": "deploy replicas of a configuration, or change their number and configuration",
            "status": "print their state as JSON",
            "targets": "write the addresses of their metrics, for Prometheus' file_sd_configs",
            "down": "drain them and end them",
        },
        title="commands",
        dest="action",
        metavar="ACTION",
        required=True,
    )
    for command in commands.values():
        add = partial(flag, command)
        add("--address ADDRESS", "the Ray cluster (RAY_ADDRESS, or the one of this machine)")
        add("--name NAME", "the application's name on it", default="farrank")
    up = partial(flag, commands["up"])
    add_settings(up)
    up("--replicas N", "number of replicas; with --max-replicas the initial number", at_least(1), default=1)
    up("--min-replicas N", "with --max-replicas: minimum number of replicas (--replicas)", at_least(1))
    up("--max-replicas N", "scale by backlog up to this number of replicas", at_least(1))
    up("--target-backlog SECONDS", "work that may wait in each replica", positive, default=1.0)
    up("--upscale-delay SECONDS", "scale up after a larger backlog for this time", not_negative, default=10.0)
    meaning = "scale down after a smaller backlog for this time"
    up("--downscale-delay SECONDS", meaning, not_negative, default=300.0)
    up("--cpus N", "CPUs that a replica reserves on its node", not_negative, default=1.0)
    up("--gpus N", "GPUs that a replica reserves on its node", not_negative, default=0.0)
    up("--surge PERCENT", "additional replicas during a rollout", at_least(0, 100), default=25)
    up("--head-only", "run a proxy only on the head node, not on every node with a replica")
    up("--timeout SECONDS", "maximum wait for replicas to be ready", positive, default=600.0)
    up("--print-config", "print a configuration file for `serve deploy` and KubeRay, and end")
    targets = partial(flag, commands["targets"])
    targets("--out FILE", "file to write", Path, required=True)
    targets("--every SECONDS", "write repeatedly until interrupted", positive)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Raises: CommandError, one line, if there is no cluster or no such application, or it cannot be brought up;
    ModuleNotFoundError if the ray extra is not installed.
    """
    # Imported first: without the extra, messages about the configuration would not help.
    from farrank_scale import cluster

    try:
        with told_in_a_line(ConfigError):
            if args.action == "up":
                return _up(args)
            with cluster.connected(args.address):
                if args.action == "status":
                    print(json.dumps(cluster.describe(args.name), indent=1))
                elif args.action == "down":
                    cluster.take_down(args.name)
                    print(f"{args.name} is down")
                else:
                    _write_targets(args)
    except cluster.ClusterError as error:
        raise CommandError(str(error), REFUSED) from error
    return DONE


def _up(args: argparse.Namespace) -> int:
    from farrank_scale import cluster
    from farrank_scale.application import Scale, check_behind_serve, serve_file

    settings = read_settings(args, os.environ)
    config = build_config(settings)
    check_behind_serve(config)
    asked = {
        "replicas": args.replicas,
        "min_replicas": args.min_replicas,
        "max_replicas": args.max_replicas,
        "target_backlog_s": args.target_backlog,
        "upscale_delay_s": args.upscale_delay,
        "downscale_delay_s": args.downscale_delay,
        "cpus": args.cpus,
        "gpus": args.gpus,
        "surge_percent": args.surge,
    }
    scale = Scale(**asked)
    if args.print_config:
        import yaml

        told = {name: value for name, value in asked.items() if value is not None}
        if args.config:
            told["config"] = str(args.config.absolute())
        if others := {
            ".".join(each.path): each.value for each in settings if each.source != str(args.config)
        }:
            told["set"] = others
        print(
            yaml.safe_dump(serve_file(args.name, config, told, head_only=args.head_only), sort_keys=False),
            end="",
        )
        return DONE
    with cluster.connected(args.address):
        try:
            cluster.bring_up(
                config,
                scale,
                args.name,
                head_only=args.head_only,
                ready_s=args.timeout,
                show=lambda line: print(line, file=sys.stderr, flush=True),
            )
        except cluster.NotReadyError as error:
            raise CommandError(
                f"{error}. Ray Serve continues: `farrank scale status` shows its progress; request less with "
                "--replicas, --cpus or --gpus, or wait longer with --timeout",
                TRY_AGAIN,
            ) from error
        address = f"{cluster.proxy_host()}:{config.listen.port}"
        with Client(address, metadata=(("application", args.name),)) as client:
            try:
                client.wait_until_healthy(HEALTHY_S)
            except FarrankError as error:
                raise CommandError(
                    f"the replicas run, and {address} does not answer for them: {error}; Ray Serve keeps "
                    "the ports and methods it was started with: end it (`serve shutdown`) and try again",
                    REFUSED,
                ) from error
    print(f"up name={args.name} grpc={address}")
    return DONE


def _write_targets(args: argparse.Namespace) -> None:
    from farrank_scale import cluster

    while True:
        with told_in_a_line(file=args.out):
            count = cluster.write_targets(args.name, args.out)
        if args.every is None:
            print(f"{count} of {args.name} in {args.out}")
            return
        time.sleep(args.every)
