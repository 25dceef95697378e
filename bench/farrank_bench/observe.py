"""What the server says of itself, and what the machine says of the server."""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from prometheus_client.parser import text_string_to_metric_families


def read_metric(url: str, name: str) -> float:
    """Sum a metric's samples over all labels."""
    with urllib.request.urlopen(url) as page:
        text = page.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )


def resident_mib(pid: int) -> float:
    """Memory of a process and its children, in MiB."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return float(sum(each.memory_info().rss for each in family)) / 2**20


@contextmanager
def watched_memory(pid: int, every_s: float = 1.0) -> Iterator[list[float]]:
    """Collect the process's memory in MiB while the block runs."""
    samples: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            samples.append(resident_mib(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
