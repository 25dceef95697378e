"""`farrank rankers new`: an untrained ranker on a backbone, saved as a folder."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farrank_cli.exit_codes import DONE, CommandError

_TOKENS = {
    "--window": "document tokens a chunk",
    "--stride": "document tokens from one chunk's start to the next's",
    "--max-document-tokens": "document tokens that are read at all",
    "--max-query-tokens": "query tokens that are read at all",
    "--pad-query-to": "query tokens to pad to, so that the document's positions stay where they are",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags; sizes that are not given follow family and backbone."""
    parser.add_argument(
        "--family", required=True, metavar="FAMILY", help="firstp, maxp, parade-attn, longp, …"
    )
    parser.add_argument(
        "--backbone",
        required=True,
        metavar="SOURCE",
        help="a folder with config.json and tokenizer, a hub name or 'embedded'",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where to save the ranker")
    for flag, meaning in _TOKENS.items():
        parser.add_argument(flag, type=int, metavar="N", help=meaning)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the family, its value as JSON or a plain word: pooling=mean",
    )
    parser.add_argument(
        "--aggregator-backbone",
        metavar="SOURCE",
        help="what PARADE's aggregating transformer starts from; its size alone with --random-weights",
    )
    parser.add_argument(
        "--interaction-backbone", metavar="SOURCE", help="likewise, late interaction's transformer"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all that is random (%(default)s)"
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="leave the backbone's weights aside, too"
    )
    parser.add_argument("--download", action="store_true", help="fetch from the hub what is not in its cache")


def run(args: argparse.Namespace) -> int:
    """Make the ranker, save it, say what it is.

    Raises: CommandError if the parts do not fit, or the folder is taken; ModuleNotFoundError if the server
    extra is not installed.
    """
    from farrank_rankers.errors import RankerError
    from farrank_rankers.files.save import save_ranker
    from farrank_rankers.files.untrained import new_ranker

    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise CommandError(f"--out {args.out}: must be a new or an empty folder")
    try:
        ranker = new_ranker(
            args.family,
            args.backbone,
            seed=args.seed,
            pretrained=not args.random_weights,
            options=_options(args.option),
            aggregator_backbone=args.aggregator_backbone,
            interaction_backbone=args.interaction_backbone,
            download=args.download,
            **{name: getattr(args, name) for name in map(_destination, _TOKENS)},
        )
        save_ranker(ranker, args.out)
    except RankerError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    chunking, parameters = ranker.spec.chunking, sum(weight.numel() for weight in ranker.parameters())
    print(
        f"{args.out}: {args.family} on {ranker.spec.backbone}, {parameters:,} parameters, "
        f"chunks {chunking.kind} {chunking.window}/{chunking.stride}, version {ranker.version}"
    )
    return DONE


def _destination(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _options(given: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE; what is no JSON is a text.

    Raises: CommandError if there is no name or no equals sign.
    """
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise CommandError(f"--option {each}: must be NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
