"""The run times in docs/explanation/choosing-a-ranker.md are those of the committed measurement."""

import csv
from pathlib import Path

from farrank_rankers.files.model_files import embedded_rankers
from farrank_rankers.files.open import open_reader

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = DOCS / "benchmarks" / "2026-11-21-efficiency-cpu-2-cores" / "efficiency.csv"


def test_run_times_here_are_those_of_the_benchmark() -> None:
    page = (DOCS / "explanation" / "choosing-a-ranker.md").read_text(encoding="utf-8")
    assert "benchmarks/2026-11-21-efficiency-cpu-2-cores/README.md" in page
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line[:2] == "| "
    ]
    heads = next(cells for cells in rows if cells[0] == "family")
    of_families = [cells for cells in rows if len(cells) == len(heads) and cells[0][:1] == "`"]
    here = {cells[0].strip("`"): cells[heads.index("here")] for cells in of_families}
    with MEASURED.open(newline="") as file:
        run_times = {row["ranker"]: float(row["run_time"]) for row in csv.DictReader(file)}
    told = 0
    for family, shown in here.items():
        names = (f"{family}-bert", f"{family}-l2-bert", f"{family}-l6-bert")
        found = [time for name, time in run_times.items() if name in names]
        if found:
            assert shown == f"{found[0]:.2f}", family
            told += 1
    # All but FirstP itself and the models that read a document whole.
    assert told == 14


def test_figures_of_the_rankers_that_come_with_it_are_those_in_their_files() -> None:
    page = (DOCS / "reference" / "embedded-rankers.md").read_text(encoding="utf-8")
    trained = {
        name: open_reader(f"embedded:{name}").spec.provenance.get("MRR") for name in embedded_rankers()
    }
    found_of = {name: found for name, found in trained.items() if found is not None}
    assert found_of.keys() == {*embedded_rankers()} - {"maxsim"}
    for name, found in found_of.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `embedded:{name}` |"))
        told = [cell.split()[0] for cell in line.strip("| ").split(" | ")[1:]]
        assert [each.split()[1] for each in found.split(", ")] == told
