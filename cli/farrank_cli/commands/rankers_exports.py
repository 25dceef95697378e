"""`farrank rankers exports`: the exports that an artifact holds, or why it can have none."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.terminal import print_columns

if TYPE_CHECKING:
    from farrank_rankers.exports.export_folder import Export
    from farrank_rankers.exports.manifest import Parity


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("artifact", metavar="ARTIFACT", help="a folder that farrank wrote a ranker into")


def run(args: argparse.Namespace) -> int:
    """Read the manifests, print what they say.

    Raises: CommandError if there is no ranker or a manifest is damaged; ModuleNotFoundError if the server
    extra is not installed.
    """
    from farrank_rankers.errors import RankerError
    from farrank_rankers.exports.export_folder import find_exports, why_not_exportable
    from farrank_rankers.files.location import locate

    try:
        folder = locate(args.artifact).folder
        reason = why_not_exportable(folder)
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
        [row for export in exports for row in _rows(export)],
    )
    return DONE


def _rows(export: "Export") -> Iterator[tuple[str, ...]]:
    """Give a row to each runtime that serves the export, and to each that was refused."""
    manifest = export.manifest
    measured: list[tuple[str, Parity | None, str]] = [
        (each.runtime, each, "yes, beyond its bound" if each.runtime in manifest.drifting else "yes")
        for each in manifest.parity
    ]
    measured += [(each.runtime, each.parity, "no, beyond its bound") for each in manifest.refused]
    for runtime, parity, serves in measured:
        yield (export.folder.name, manifest.stored_as, runtime, *_figures(parity), serves)


def _figures(parity: "Parity | None") -> tuple[str, ...]:
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
