"""Write the JSON of all dashboards anew: `python -m farrank_dashboards`."""

import argparse
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from farrank_dashboards.panels import read

ROOM = Path(__file__).parents[1]
DEFINITIONS, GRAFANA = ROOM / "definitions", ROOM / "grafana"
DASHBOARDS = tuple(sorted(path.with_suffix(".json").name for path in DEFINITIONS.glob("*.yaml")))


def rendered(name: str) -> str:
    """Write one dashboard as the JSON of its file; the same every time."""
    dashboard = read((DEFINITIONS / name).with_suffix(".yaml")).build()
    return JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).encode(dashboard) + "\n"


def main() -> None:
    """Write the files, and say which."""
    parser = argparse.ArgumentParser(prog="farrank_dashboards", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=GRAFANA, help="folder to write to (%(default)s)")
    folder: Path = parser.parse_args().out
    for name in DASHBOARDS:
        (folder / name).write_text(rendered(name), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
