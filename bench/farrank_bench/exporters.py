"""torch's exporter and optimum's on the same ranker: `python -m farrank_bench.exporters`.

It needs optimum, which requires the environment with transformers 4.57 (docs/decisions/0031).
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from farrank_bench.corpus_calls import encoder_inputs, make_calls
from farrank_bench.offline import RuntimeAlone, longest_first
from farrank_bench.report import PACKAGES, Command, Heading, Measure, Row
from farrank_bench.rounds import Contender, measure_rounds
from farrank_exporters.export import export_ranker
from farrank_exporters.optimum_exporter import Level
from farrank_exporters.optimum_layout import PlainPrecision, export_layout
from farrank_exporters.texts import Texts, divide, python_documentation
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Exported
from farrank_rankers.exports.manifest import Exporter, Parity
from farrank_rankers.exports.published_files import named_published
from farrank_rankers.files.model_files import EMBEDDED, ModelFiles, locate
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_runtimes.published_runtime import open_published, open_published_runtime
from farrank_runtimes.runtime import Placement, Runtime
from farrank_runtimes.runtime_table import open_export

NOTES = (
    "all-MiniLM-L6-v2, a trained bi-encoder, over the windows of {documents} documents of 20 to 1,400 "
    "tokens, longest first, with {threads} threads; all graphs and runtimes take turns; medians of {rounds} "
    "rounds (smallest to largest); fidelity is from the parity report over Python's documentation; nodes are "
    "those of the encoder's graph"
)
# The levels of --layout optimum, in addition to fp32.
LEVELS: tuple[Level, ...] = ("O1", "O2", "O3")


@dataclass(frozen=True, slots=True)
class RunnableGraph:
    """One graph that is ready to run: its file, its runtime, and how close the runtime's scores are."""

    graph: Path
    runtime: Runtime
    parity: Parity | None


def main() -> int:
    """Export the ranker in every way, measure all graphs in turns, print the table."""
    command = Command("farrank_bench.exporters", __doc__)
    add = command.options.add_argument
    add("--rounds", type=int, default=5)
    add("--calls", type=int, default=6, help="calls of 16 documents each (%(default)s)")
    add("--threads", type=int, default=2)
    given = command.parse(None)
    with TemporaryDirectory(prefix="farrank-exporters-") as scratch:
        notes = NOTES.format(documents=16 * given.calls, threads=given.threads, rounds=given.rounds)
        packages = (*PACKAGES, "optimum", "optimum-onnx", "onnxscript")
        heading = Heading("Exporters", notes, packages)
        return command.report(heading, parts(Path(scratch), given), given.out)


def parts(folder: Path, given: Any) -> Iterator[tuple[str, Measure]]:
    """Yield the only section."""
    yield "Graphs of one ranker", partial(compare, folder, given)


def compare(folder: Path, given: Any) -> list[Row]:
    """Make all graphs, measure them in turns, and return a row for each."""
    texts = divide(python_documentation(), "the topics of help()")
    placement = Placement(device="cpu", threads=given.threads)
    made: dict[str, RunnableGraph] = {}
    refused: list[Row] = []
    for name, make in {**_ours(folder, texts, placement), **_plain(folder, texts[0], placement)}.items():
        print(f"  {name}", flush=True)
        try:
            made |= {f"{name}, {each.runtime.capabilities().runtime}": each for each in make()}
        except ExportError as error:
            refused.append(Row(name, f"refused: {error}"))
    reader = open_ranker(EMBEDDED).reader
    inputs = longest_first(encoder_inputs(reader, make_calls(reader, given.calls, 16, seed=5)))
    contenders: dict[str, Contender] = {
        name: RuntimeAlone(each.runtime, inputs).score for name, each in made.items()
    }
    found = measure_rounds(contenders, given.rounds)
    lengths = [each.tokens for each in inputs]
    rows = [Row("inputs", f"{len(lengths)} of {min(lengths)} to {max(lengths)} tokens")]
    for name, each in made.items():
        speed = found.speed_row(name, name)
        rows.append(Row(name, f"{speed.measured} inputs/s; {_size(each.graph)}; {_fidelity(each.parity)}"))
    return rows + refused


def _size(graph: Path) -> str:
    if graph.suffix != ".onnx":
        files = (graph, graph.with_suffix(".bin"))
        return f"{sum(each.stat().st_size for each in files) / 2**20:.1f} MiB"
    nodes = len(onnx.load(graph, load_external_data=False).graph.node)
    return f"{nodes} nodes, {graph.stat().st_size / 2**20:.1f} MiB"


def _fidelity(parity: Parity | None) -> str:
    if parity is None:
        return "not measured"
    return (
        f"scores off by {parity.max_difference:.1e} at most (spread {parity.spread:.2g}), "
        f"Kendall's tau {parity.kendall_tau:.4f}"
    )


Make = Callable[[], list[RunnableGraph]]


def _ours(folder: Path, texts: tuple[Texts, Texts], placement: Placement) -> dict[str, Make]:
    """Return the exports of Farrank's own layout by name: by both tracers, in fp32 and int8."""

    def make(exporter: Exporter, precision: PlainPrecision) -> list[RunnableGraph]:
        artifact = folder / f"{exporter}-{precision}"
        save_ranker(open_ranker(EMBEDDED), artifact)
        ranker = open_ranker(artifact)
        export = export_ranker(
            ranker, artifact, "onnx", precision, measured=texts[0], calibration=texts[1], exporter=exporter
        )
        reports = {each.runtime: each for each in export.manifest.parity}
        graph = export.manifest.graphs["encoder"]
        exported = Exported(export, ranker.reader, ranker.version, ranker.encodings_version)
        return [
            RunnableGraph(
                export.folder / graph.file_for(name),
                open_export(name, exported, placement),
                reports.get(name),
            )
            for name in export.manifest.runtimes
        ]

    return {
        f"our layout, {precision}, traced by {exporter}": partial(make, exporter, precision)
        for precision in ("fp32", "int8")
        for exporter in ("torch", "optimum")
    }


def _plain(folder: Path, texts: Texts, placement: Placement) -> dict[str, Make]:
    """Return the exports of optimum's layout by name: by both tracers, at each level, and in int8."""

    def make(exporter: Exporter, level: Level | None, precision: PlainPrecision) -> list[RunnableGraph]:
        place = folder / f"plain-{exporter}-{level}-{precision}"
        written = export_layout(
            EMBEDDED, place, precision, texts, exporter=exporter, level=level, allow_drift=True
        )
        files = ModelFiles.find(locate(place))
        file = named_published(files, written.graph.relative_to(place).as_posix())
        opened = open_published(file, str(place), Overrides())
        return [
            RunnableGraph(
                written.graph,
                open_published_runtime(opened, each.runtime, each.precision, placement),
                each.parity,
            )
            for each in written.measured
            if each.precision == precision
        ]

    named: dict[str, Make] = {}
    for exporter in ("torch", "optimum"):
        for level in (None, *LEVELS):
            of = f"optimum's layout, {level or 'fp32'}, traced by {exporter}"
            named[of] = partial(make, exporter, level, "fp32")
        named[f"optimum's layout, int8, traced by {exporter}"] = partial(make, exporter, None, "int8")
    return named


if __name__ == "__main__":
    sys.exit(main())
