"""Write every dashboard's JSON anew: `python -m farrank_dashboards`."""

import argparse
from pathlib import Path

from farrank_dashboards.catalogue import DASHBOARDS, rendered

GRAFANA = Path(__file__).parents[1] / "grafana"


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
