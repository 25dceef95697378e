"""All dashboards, and the command that writes their JSON anew: `python -m farrank_dashboards`."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from farrank_dashboards.engine_dashboards import batching, device, documents, first_stage
from farrank_dashboards.service_dashboards import admission, latency, traffic

DASHBOARDS: Mapping[str, Callable[[], Dashboard]] = {
    "traffic.json": traffic,
    "latency.json": latency,
    "batching.json": batching,
    "admission.json": admission,
    "documents.json": documents,
    "device.json": device,
    "first_stage.json": first_stage,
}


def rendered(name: str) -> str:
    """Write one dashboard as the JSON of its file; the same every time."""
    return JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).encode(DASHBOARDS[name]().build()) + "\n"


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
