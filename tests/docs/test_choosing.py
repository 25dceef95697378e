"""What docs/choosing-a-ranker.md says of run time here is what the committed measurement holds."""

import csv
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = DOCS / "benchmarks" / "2026-11-21-efficiency-cpu-2-cores" / "efficiency.csv"


def test_run_times_here_are_those_of_the_benchmark() -> None:
    page = (DOCS / "choosing-a-ranker.md").read_text(encoding="utf-8")
    assert "benchmarks/2026-11-21-efficiency-cpu-2-cores/README.md" in page
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line[:2] == "| "
    ]
    heads = next(cells for cells in rows if cells[0] == "family")
    here = {cells[0].strip("`"): cells[heads.index("here")] for cells in rows if cells[0][:1] == "`"}
    with MEASURED.open(newline="") as file:
        run_times = {row["ranker"]: float(row["run_time"]) for row in csv.DictReader(file)}
    told = 0
    for family, shown in here.items():
        names = (f"{family}-bert", f"{family}-l2-bert", f"{family}-l6-bert")
        found = [time for name, time in run_times.items() if name in names]
        if found:
            assert shown == f"{found[0]:.2f}", family
            told += 1
    # All but FirstP itself and the ones that read a document whole.
    assert told == 14
