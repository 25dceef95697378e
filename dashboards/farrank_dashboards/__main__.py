"""Write the JSON of all dashboards: `python -m farrank_dashboards`."""

import argparse
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from farrank_dashboards.panels import read

ROOM = Path(__file__).parents[1]
DEFINITIONS, GRAFANA = ROOM / "definitions", ROOM / "grafana"
DASHBOARDS = tuple(sorted(path.with_suffix(".json").name for path in DEFINITIONS.glob("*.yaml")))


def rendered(name: str) -> str:
    """Return one dashboard as the JSON of its file. It is the same every time."""
    dashboard = read((DEFINITIONS / name).with_suffix(".yaml")).build()
    return JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).encode(dashboard) + "\n"


def main() -> None:
    """Write Grafana's dashboards from their definitions, and print the files' paths."""
    parser = argparse.ArgumentParser(prog="farrank_dashboards", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=GRAFANA, help="folder to write to (%(default)s)")
    folder: Path = parser.parse_args().out
    for name in DASHBOARDS:
        (folder / name).write_text(rendered(name), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
