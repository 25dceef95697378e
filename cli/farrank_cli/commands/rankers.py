"""`farrank rankers`: what a server holds; rankers to make, an artifact's exports, and the papers' models."""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE, CommandError, missing_extra
from farrank_cli.terminal import print_columns
from farrank_client import Catalog, Parity, RankerInfo

if TYPE_CHECKING:
    from farrank_rankers.exports.export_folder import Export
    from farrank_rankers.exports.manifest import Parity as MeasuredParity

_TOKENS = {
    "--window": "document tokens a chunk",
    "--stride": "document tokens from one chunk's start to the next's",
    "--max-document-tokens": "document tokens that are read at all",
    "--max-query-tokens": "query tokens that are read at all",
    "--pad-query-to": "query tokens to pad to, so that the document's positions stay where they are",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, and the subcommands that ask no server."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--papers", action="store_true", help="list the papers' models at full size; asks no server"
    )
    add_connection_flags(parser)
    actions = parser.add_subparsers(title="instead of listing", dest="action", metavar="[new | exports]")
    summary = "make an untrained ranker on a backbone"
    _configure_new(actions.add_parser("new", help=summary, description=f"{summary.capitalize()}."))
    summary = "list the exports of an artifact"
    described = actions.add_parser("exports", help=summary, description=f"{summary.capitalize()}.")
    _configure_exports(described)


def run(args: argparse.Namespace) -> int:
    """Ask the server and print its catalog, unless something else is asked for.

    Raises: CommandError if the call fails, the ranker cannot be made or the server extra is missing.
    """
    if args.action and args.papers:
        raise CommandError(f"rankers: give either {args.action} or --papers")
    try:
        if args.action == "new":
            return _make_new(args)
        if args.action == "exports":
            return _list_exports(args)
        if args.papers:
            return _list_papers(as_json=args.json)
    except ModuleNotFoundError as error:
        asked = f"rankers {args.action}" if args.action else "rankers --papers"
        raise missing_extra(asked, "server", error) from error
    with connect(args) as client:
        catalog = client.rankers()
    if args.json:
        print(json.dumps(dataclasses.asdict(catalog), ensure_ascii=False))
    else:
        _print(catalog)
    return DONE


def _print(catalog: Catalog) -> None:
    print_columns(
        ("ranker", "family", "backbone", "query", "document", "window/stride", "runs on", "version"),
        [
            (
                each.name,
                _family(each),
                each.backbone,
                f"{each.max_query_tokens} tokens",
                f"{each.max_document_tokens} tokens",
                f"{each.window}/{each.stride}",
                f"{each.runtime} {each.device} {each.precision}",
                each.version,
            )
            for each in catalog.rankers
        ],
    )
    print()
    print_columns(
        ("ranker", "served by", "scores differ from torch fp32 by"),
        [(each.name, each.runtime_reason, _parity(each.parity)) for each in catalog.rankers],
    )
    print()
    print_columns(
        ("index", "documents", "first stage"),
        [(each.name, str(each.documents), each.first_stage) for each in catalog.indexes],
    )
    print()
    limits = dataclasses.asdict(catalog.limits)
    print_columns(("limit", "value"), [(name, f"{value:,}") for name, value in limits.items()])


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return ""
    return (
        f"{parity.max_difference:.1e} at most, {parity.mean_difference:.1e} in the mean; "
        f"tau {parity.kendall_tau:.4f}, top 10 {parity.top10_overlap:.0%}"
    )


def _family(ranker: RankerInfo) -> str:
    """Name the family with what it leaves open: `cross-encoder (aggregation max)`."""
    options = ", ".join(f"{name} {value}" for name, value in ranker.options.items() if value)
    return f"{ranker.family} ({options})" if options else ranker.family


def _configure_new(parser: argparse.ArgumentParser) -> None:
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


def _make_new(args: argparse.Namespace) -> int:
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


def _configure_exports(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("artifact", metavar="ARTIFACT", help="a folder that farrank wrote a ranker into")


def _list_exports(args: argparse.Namespace) -> int:
    """Read the manifests, print what they say.

    Raises: CommandError if there is no ranker or a manifest is damaged; ModuleNotFoundError if the server
    extra is not installed.
    """
    from farrank_rankers.errors import RankerError
    from farrank_rankers.exports.export_folder import NO_ENSEMBLES, find_exports
    from farrank_rankers.files.model_files import lists_members, locate

    try:
        folder = locate(args.artifact).folder
        reason = NO_ENSEMBLES if lists_members(folder) else None
        exports = find_exports(folder)
    except RankerError as error:
        raise CommandError(str(error)) from error
    if args.json:
        manifests = {export.folder.name: json.loads(export.manifest.to_json()) for export in exports}
        print(json.dumps({"exports": manifests, "cannot_be_exported": reason}, ensure_ascii=False))
        return DONE
    if reason:
        print(f"{args.artifact} cannot be exported: {reason}")
        return DONE
    if not exports:
        print(f"{args.artifact} holds no export; farrank export {args.artifact} makes one")
        return DONE
    print_columns(
        (
            "export",
            "stored as",
            "runtime",
            "computed in",
            "off by at most",
            "Kendall's tau",
            "top-10",
            "bound",
            "serves",
        ),
        [row for export in exports for row in _export_rows(export)],
    )
    return DONE


def _export_rows(export: "Export") -> Iterator[tuple[str, ...]]:
    """Give a row to each runtime that serves the export, and to each that was refused."""
    manifest = export.manifest
    measured: list[tuple[str, MeasuredParity | None, str]] = [
        (each.runtime, each, "yes, beyond its bound" if each.runtime in manifest.drifting else "yes")
        for each in manifest.parity
    ]
    measured += [(each.runtime, each.parity, "no, beyond its bound") for each in manifest.refused]
    for runtime, parity, serves in measured:
        yield (export.folder.name, manifest.stored_as, runtime, *_figures(parity), serves)


def _figures(parity: "MeasuredParity | None") -> tuple[str, ...]:
    """Write what a report says; a runtime whose scores were no numbers has none."""
    if parity is None:
        return ("-", "nan", "nan", "nan", "-")
    return (
        parity.computed_in,
        f"{parity.max_difference:.2g}",
        f"{parity.kendall_tau:.4f}",
        f"{parity.top10_overlap:.3f}",
        parity.bound,
    )


def _list_papers(*, as_json: bool) -> int:
    """Build every model without weights and print what it is.

    Raises: ModuleNotFoundError if the server extra is not installed.
    """
    from farrank_rankers.papers import count_parameters, on_meta, paper_models

    models = [
        {
            "name": model.name,
            "family": model.spec.family,
            "backbone": model.spec.backbone,
            "chunking": model.spec.chunking.kind,
            "window": model.spec.chunking.window,
            "stride": model.spec.chunking.stride,
            "max_document_tokens": model.spec.chunking.max_document_tokens,
            "parameters": count_parameters(on_meta(model)),
        }
        for model in paper_models().values()
    ]
    if as_json:
        print(json.dumps({"models": models}, ensure_ascii=False))
        return DONE
    print_columns(
        ("name", "family", "backbone", "chunking", "window/stride", "parameters"),
        [
            (
                *(str(model[key]) for key in ("name", "family", "backbone", "chunking")),
                f"{model['window']}/{model['stride']}",
                f"{model['parameters']:,}",
            )
            for model in models
        ],
    )
    return DONE
