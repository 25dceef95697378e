"""A real server of a model on the device, in a process of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from farrank_bench.gpu.bench import Bench
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_rankers.artifact import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.threads import usable_cores

NAME = "bench"


@contextmanager
def serving(bench: Bench, ranker: Ranker) -> Iterator[SpawnedServer]:
    """Serve a model as `bench.open` would, packed and in bf16, and keep nothing between calls.

    Half the cores read texts: a device that is fed from text is no faster than they are.
    """
    settings = {
        f"rankers.{NAME}.packing": "packed",
        f"rankers.{NAME}.runtime": "torch",
        f"rankers.{NAME}.precision": "bf16",
        "tokenizer_threads": max(2, usable_cores() // 2),
        "cache_bytes": 0,
        "limits.default_timeout_s": 600,
    }
    with TemporaryDirectory() as folder:
        save_ranker(ranker, Path(folder))
        arguments = ["--ranker", f"{NAME}={folder}", "--device", str(bench.device), "--log-level", "warning"]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        with spawned_server(arguments) as server:
            yield server
