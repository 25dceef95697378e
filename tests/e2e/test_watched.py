"""`farrank serve --watch` on a mounted ConfigMap, as in docs/how-to/kubernetes.md, and on a folder."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_server.watch import WATCH_S

# A change that has stood still for one look is taken at the next; further looks would try it again.
FURTHER_LOOKS_S = 3.5 * WATCH_S


class ConfigMap:
    """A mounted ConfigMap: the kubelet writes a folder for each change, and then moves the link `..data`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changes = 0
        self.file = folder / "farrank.yaml"
        self.file.symlink_to("..data/farrank.yaml")

    def write(self, tree: object) -> None:
        self._changes += 1
        fresh = self._folder / f"..change_{self._changes}"
        fresh.mkdir()
        (fresh / self.file.name).write_text(json.dumps(tree))
        link = self._folder / "..data_tmp"
        link.symlink_to(fresh.name)
        link.replace(self._folder / "..data")


def test_a_changed_config_map_swaps_rankers_and_a_broken_one_is_reported_once(
    tiny_rankers: dict[str, Path], tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    folder, current = tmp_path / "mounted", tmp_path / "current"
    folder.mkdir()
    current.symlink_to(tiny_rankers["maxp"])
    mounted = ConfigMap(folder)

    def serve(source: Path) -> None:
        mounted.write({"rankers": {"it": {"source": str(source), "depth": {"mode": "all"}}}})

    def errors() -> list[str]:
        lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
        return [each["message"] for each in lines if each["level"] == "error"]

    serve(current)
    log = tmp_path / "log"
    with log.open("wb") as opened:
        flags = [f"--config={mounted.file}", "--watch", "--log-format=json"]
        with spawned_server(flags, opened) as server, Client(server.address) as client:

            def version() -> str:
                return client.rerank("river", ["the river", "bread"]).ranker.version

            first = version()
            serve(tiny_rankers["firstp"])
            until(lambda: version() != first)
            second = version()

            serve(tmp_path / "absent")
            until(lambda: bool(errors()))
            time.sleep(FURTHER_LOOKS_S)
            assert version() == second
            assert sum(each.startswith("the reload failed") for each in errors()) == 1
            assert "rankers.it" in errors()[-1]
            reported = len(errors())

            # The next change is taken, and then one of the ranker's own folder.
            serve(current)
            until(lambda: version() == first)
            link = tmp_path / "next"
            link.symlink_to(tiny_rankers["firstp"])
            link.replace(current)
            until(lambda: version() == second)
            assert len(errors()) == reported
