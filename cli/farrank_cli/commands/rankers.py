"""`farrank rankers`: see and change a server's rankers; make a ranker; list exports or the papers' models."""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_cli.admin_commands import ADMIN_ACTIONS, add_admin_flags, run_admin
from farrank_cli.connection import add_connection_flags, connect
from farrank_cli.exit_codes import DONE, CommandError, missing_extra, told_in_a_line
from farrank_cli.flags import add_commands, flag
from farrank_cli.new_ranker import add_new_ranker_flags, make_new_ranker
from farrank_cli.terminal import Progress, print_columns
from farrank_client import Catalog, Parity, RankerInfo
from farrank_rankers.chunking import WHOLE_DOCUMENT

if TYPE_CHECKING:
    from farrank_rankers.exports.export_folder import Export
    from farrank_rankers.exports.manifest import ExportParity as MeasuredParity

_ACTIONS = {
    "new": "make an untrained ranker on a backbone",
    "exports": "list the exports of an artifact, or the graphs of a published model",
    "measure": "measure the graphs that a published model ships with its weights",
}

# Columns of `farrank rankers exports`: the graph, the parity of its scores, and whether it serves.
_EXPORT_HEADS = (
    *("export", "stored as", "runtime", "computed in"),
    *("off by at most", "Kendall's tau", "top-10", "bound", "serves"),
)
_PUBLISHED_KEYS = (
    *("file", "stored_as", "runtime", "computed_in"),
    *("max_difference", "kendall_tau", "top10_overlap", "bound", "serves"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, and the subcommands that call no server."""
    flag(parser, "--json", "print one JSON object instead of tables")
    meaning = "list the papers' models at full size; with new, keep the papers' limits; calls no server"
    parser.add_argument("--papers", action="store_true", dest="of_papers", help=meaning)
    add_connection_flags(parser)
    title = "instead of listing"
    all_actions = {**ADMIN_ACTIONS, **_ACTIONS}
    actions = add_commands(
        parser, all_actions, title=title, dest="action", metavar=f"[{' | '.join(all_actions)}]"
    )
    for name in ADMIN_ACTIONS:
        add_admin_flags(name, actions[name])
    exported = "a ranker's folder written by farrank, or a published model's folder or hub name"
    actions["exports"].add_argument("artifact", metavar="ARTIFACT", help=exported)
    published = "a published model's folder, or a hub name that is in the local cache"
    actions["measure"].add_argument("model", metavar="MODEL", help=published)
    meaning = 'texts to measure with, one {"text": …} per line (Python\'s documentation)'
    flag(actions["measure"], "--texts JSONL", meaning, Path)

    add = partial(flag, actions["new"])
    add_new_ranker_flags(add)
    add("--out FOLDER", "folder for the ranker", Path, required=True)
    add("--seed N", "seed of all random weights", int, 0)


def run(args: argparse.Namespace) -> int:
    """Print the server's catalog, or run the chosen subcommand.

    Raises: CommandError if the call fails, the ranker cannot be made or the server extra is missing.
    """
    if args.action in ADMIN_ACTIONS:
        return run_admin(args)
    if args.of_papers and args.action == "new":
        args.papers = True
    elif args.of_papers and args.action:
        raise CommandError(f"rankers: give either {args.action} or --papers")
    asked = args.action or ("--papers" if args.of_papers else None)
    if asked is not None:
        local = {
            "new": _make_new,
            "exports": _list_exports,
            "measure": _measure_published,
            "--papers": _list_papers,
        }
        try:
            local[asked](args)
        except ModuleNotFoundError as error:
            raise missing_extra(f"rankers {asked}", error, "server") from error
        return DONE
    with connect(args) as client:
        catalog = client.rankers()
    if args.json:
        as_text = json.dumps(
            dataclasses.asdict(catalog), ensure_ascii=False, default=lambda mode: mode.name.lower()
        )
        print(as_text)
    else:
        _print(catalog)
    return DONE


def _print(catalog: Catalog) -> None:
    print_columns(
        ("ranker", "family", "backbone", "query", "document", "window/stride", "runs on", "version"),
        [
            (
                each.name,
                _family(each.family, each.options),
                each.backbone,
                f"{each.max_query_tokens} tokens",
                "whole"
                if each.max_document_tokens >= WHOLE_DOCUMENT
                else f"{each.max_document_tokens} tokens",
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
        [(each.name, each.runtime_reason, _parity(each)) for each in catalog.rankers],
    )
    print()
    print_columns(
        ("index", "kind", "documents", "first stage", "of"),
        [
            (each.name, each.kind, str(each.documents), each.first_stage, ", ".join(each.members))
            for each in catalog.indexes
        ],
    )
    print()
    limits = dataclasses.asdict(catalog.limits)
    print_columns(("limit", "value"), [(name, f"{value:,}") for name, value in limits.items()])


def _parity(ranker: RankerInfo) -> str:
    parity = ranker.parity
    if parity is None:
        # Only published exports may lack a report.
        return "" if ranker.runtime == "torch" or ranker.family == "ensemble" else "unknown"
    return _parity_in_words(parity)


def _parity_in_words(parity: "Parity | MeasuredParity") -> str:
    return (
        f"{parity.max_difference:.1e} at most, {parity.mean_difference:.1e} in the mean; "
        f"tau {parity.kendall_tau:.4f}, top 10 {parity.top10_overlap:.0%}"
    )


def _family(family: str, options: Mapping[str, str]) -> str:
    """Name the family with its options: `cross-encoder (aggregation max)`."""
    given = ", ".join(f"{name} {value}" for name, value in options.items() if value)
    return f"{family} ({given})" if given else family


def _make_new(args: argparse.Namespace) -> None:
    """Make the ranker, save it, print its facts.

    Raises: CommandError if the parts do not fit, or the folder is taken.
    """
    from farrank_rankers.errors import RankerError
    from farrank_rankers.files.save import save_ranker

    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise CommandError(f"--out {args.out}: must be a new or an empty folder")
    with told_in_a_line(RankerError, file=args.out):
        ranker = make_new_ranker(args, args.seed)
        save_ranker(ranker, args.out)
    chunking, parameters = ranker.spec.chunking, sum(weight.numel() for weight in ranker.parameters())
    print(
        f"{args.out}: {args.family} on {ranker.spec.backbone}, {parameters:,} parameters, "
        f"chunks {chunking.kind} {chunking.window}/{chunking.stride}, version {ranker.version}"
    )


def _list_exports(args: argparse.Namespace) -> None:
    """Read the manifests and print them.

    Raises: CommandError if there is no ranker or a manifest is damaged.
    """
    from farrank_rankers.errors import RankerError
    from farrank_rankers.exports.export_folder import NO_ENSEMBLES, find_exports
    from farrank_rankers.files.model_files import lists_members, locate

    with told_in_a_line(RankerError):
        folder = locate(args.artifact).folder
        reason = NO_ENSEMBLES if lists_members(folder) else None
        exports = find_exports(folder)
        published = [] if reason or exports else _published_rows(args.artifact)
    if args.json:
        manifests = {export.folder.name: json.loads(export.manifest.to_json()) for export in exports}
        told: dict[str, Any] = {"exports": manifests, "cannot_be_exported": reason}
        if published:
            told["published"] = [dict(zip(_PUBLISHED_KEYS, row, strict=True)) for row in published]
        print(json.dumps(told, ensure_ascii=False))
    elif reason:
        print(f"{args.artifact} cannot be exported: {reason}")
    elif published:
        print_columns(_EXPORT_HEADS, published)
    elif not exports:
        print(f"{args.artifact} has no export; farrank export {args.artifact} makes one")
    else:
        print_columns(_EXPORT_HEADS, [row for export in exports for row in _export_rows(export)])
        for export in exports:
            for quantized in export.manifest.quantized:
                print(f"{export.folder.name}, {quantized}")


def _export_rows(export: "Export") -> Iterator[tuple[str, ...]]:
    """Give a row for each runtime that serves the export, and for each that was refused."""
    manifest = export.manifest
    served = [
        (each.runtime, each, "yes, beyond its bound" if each.runtime in manifest.drifting else "yes")
        for each in manifest.parity
    ]
    refused = [(each.runtime, each.parity, "no, beyond its bound") for each in manifest.refused]
    for runtime, parity, serves in (*served, *refused):
        yield (export.folder.name, manifest.stored_as, runtime, *_figures(parity), serves)


def _figures(parity: "MeasuredParity | None") -> tuple[str, ...]:
    """Fill the columns of a report; a runtime with NaN scores has no figures."""
    if parity is None:
        return ("-", "nan", "nan", "nan", "-")
    return (
        parity.computed_in,
        f"{parity.max_difference:.2g}",
        f"{parity.kendall_tau:.4f}",
        f"{parity.top10_overlap:.3f}",
        parity.bound,
    )


def _published_rows(source: str) -> list[tuple[str, ...]]:
    """Give a row for each runtime that a published graph was measured with, or one row of "unknown".

    A graph that cannot be served has a row with the reason.
    """
    from farrank_rankers.errors import RankerError
    from farrank_rankers.exports.published_files import graph_files, why_not_served
    from farrank_rankers.exports.published_parity import read_measured
    from farrank_rankers.files.model_files import ModelFiles, locate
    from farrank_rankers.files.open import Overrides
    from farrank_runtimes.published_runtime import open_published
    from farrank_runtimes.runtime import RuntimeAbsent

    files = ModelFiles.find(locate(source))
    measured = read_measured(files.folder)
    rows: list[tuple[str, ...]] = []
    for file in graph_files(files):
        if (why := why_not_served(files, file)) is not None:
            rows.append((str(file), *["-"] * 7, f"no: {why}"))
            continue
        try:
            opened = open_published(file, source, Overrides())
        except (RankerError, RuntimeAbsent) as error:
            rows.append((str(file), *["-"] * 7, f"no: {error}"))
            continue
        stored = opened.graph.stored_as
        of_file = [each for each in measured if (each.file, each.version) == (file.file, opened.measured_as)]
        if not of_file:
            rows.append((str(file), stored, "-", "-", *["unknown"] * 3, "-", "yes, its parity unknown"))
        for each in of_file:
            serves = "by name, beyond its bound" if each.beyond else "yes"
            rows.append((str(file), stored, each.runtime, *_figures(each.parity), serves))
    return rows


def _measure_published(args: argparse.Namespace) -> None:
    """Measure the published graphs, print their parity and the report's file.

    Raises: CommandError if there are none, the weights cannot be read, or the report cannot be written.
    """
    from farrank_exporters.published import measure_published
    from farrank_exporters.texts import divide, python_documentation, read_texts
    from farrank_rankers.errors import RankerError

    steps = Progress("steps", every_s=0)
    counted = itertools.count()
    with told_in_a_line(RankerError):
        texts = python_documentation() if args.texts is None else read_texts(args.texts)
        measured, _ = divide(texts, str(args.texts or "Python's documentation"))
        found = measure_published(args.model, measured, lambda text: steps(next(counted), text))
    steps.end()
    for file, reason in found.skipped.items():
        print(f"not measured: {file}: {reason}")
    for each in found.measured:
        parity = _parity_in_words(each.parity) if each.parity else "scores are not numbers"
        beyond = f"; BEYOND ITS BOUND: {each.beyond}" if each.beyond else ""
        print(f"{each.file} with {each.runtime} in {each.precision}: {parity}{beyond}")
    print(f"report in {found.kept_in}")


def _list_papers(args: argparse.Namespace) -> None:
    """Build every model without weights and print its facts."""
    from farrank_rankers.papers import count_parameters, on_meta, paper_models

    models = []
    for model in paper_models().values():
        spec, chunking = model.spec, dataclasses.asdict(model.spec.chunking)
        names = {"name": model.name, "family": spec.family, "backbone": spec.backbone}
        sizes = (
            {"chunking": chunking.pop("kind")} | chunking | {"parameters": count_parameters(on_meta(model))}
        )
        models.append(names | sizes)
    if args.json:
        print(json.dumps({"models": models}, ensure_ascii=False))
        return
    print_columns(
        ("name", "family", "backbone", "chunking", "window/stride", "document", "parameters"),
        [
            (
                *(model[key] for key in ("name", "family", "backbone", "chunking")),
                f"{model['window']}/{model['stride']}",
                f"{model['max_document_tokens']} tokens",
                f"{model['parameters']:,}",
            )
            for model in models
        ],
    )
