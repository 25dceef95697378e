"""Write everything that a sweep leaves into one folder."""

import csv
import json
from pathlib import Path

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.latency.report.charts import latency_chart, percentiles_chart, stages_chart
from farrank_loadtest.latency.report.page import render_page
from farrank_loadtest.latency.report.rows import Setting, as_csv, as_json
from farrank_loadtest.latency.result import Sweep

RESULTS = "results.json"
PAGE = "report.html"


def prepare_folder(folder: Path) -> None:
    """Make the folder, before any load: a sweep must not end with nowhere to go.

    Raises: LoadtestError if it holds results already, or cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RESULTS).exists():
            raise LoadtestError(f"{folder}: holds {RESULTS} already; name another folder")
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error


def write_folder(folder: Path, sweep: Sweep, setting: Setting) -> None:
    """Write `results.json`, `results.csv`, the charts as PNG, and `report.html`.

    Figures that nothing was measured for are left out. Raises: OSError.
    """
    # The figures first: a chart that fails must not cost what was measured.
    found = json.dumps(as_json(sweep, setting), indent=2, ensure_ascii=False)
    (folder / RESULTS).write_text(found + "\n", encoding="utf-8")
    rows = as_csv(sweep)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    charts = {}
    if any(step.whole.latency.count for step in sweep.steps):
        drawn = {
            ("latency.png", "Latency and goodput against load"): latency_chart(sweep),
            ("stages.png", "Latency and the server's own stages"): stages_chart(sweep),
            ("percentiles.png", "Percentiles"): percentiles_chart(sweep),
        }
        for (name, title), figure in drawn.items():
            if figure is not None:
                figure.savefig(folder / name)
                charts[title] = figure
    (folder / PAGE).write_text(render_page(sweep, setting, charts), encoding="utf-8")
