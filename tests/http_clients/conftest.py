"""A server that clients of other rerankers call, and the environments of these clients."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from farrank_cli.spawn import spawned_server
from farrank_client import Client, ScoreScale
from support.asked_server import CONCURRENT_CALLS, AskedServer
from support.client_environments import IndexUnreachable, made_environment

# The pytest of each environment collects these.
collect_ignore = ["inside"]

HERE = Path(__file__).parent
QUERY = "where does the river rise?"
DOCUMENTS = (
    "Bread is baked from flour, water, salt and yeast.",
    "The river rises in the mountains and reaches the sea. " * 120,
    'A "quoted" ship sails over the sea: \\ größer als 😀 gedacht.',
    "Rivers rise where springs are.",
    "Nobody reads the manual.\nIt is long. " * 30,
    "Yeast",
)


@pytest.fixture(scope="session")
def environments() -> Iterator[dict[str, Future[Path]]]:
    """The folders of executables by the names of their files. The environments are installed in parallel."""
    with ThreadPoolExecutor() as pool:
        yield {path.stem: pool.submit(made_environment, path) for path in sorted(HERE.glob("*.txt"))}


@pytest.fixture(scope="session")
def scripts(environments: dict[str, Future[Path]]) -> Callable[[str], Path]:
    """Wait for an environment. Skip if no package index can be reached."""

    def wait(name: str) -> Path:
        try:
            return environments[name].result()
        except IndexUnreachable as error:
            pytest.skip(
                f"NO CLIENT WAS TESTED: no package index can be reached to install {name}.txt: {error}"
            )

    return wait


@pytest.fixture(scope="session")
def server(tiny_rankers: dict[str, Path], environments: dict[str, Future[Path]]) -> Iterator[AskedServer]:
    """A server with one ranker, which starts while the environments are installed."""
    limits = f"--set=limits.max_concurrent_calls={CONCURRENT_CALLS}"
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", limits, "--http-port=0", "--log-level=warning"]
    with spawned_server(arguments) as spawned, Client(spawned.address) as client:
        results = client.rerank(QUERY, DOCUMENTS, score_scale=ScoreScale.SIGMOID).results
        # Scores of concurrent calls may differ in their last digits.
        assert all(a.score - b.score > 2e-5 for a, b in pairwise(results))
        scores = [each.score for each in sorted(results, key=lambda each: each.index)]
        yield AskedServer(spawned.http_url, spawned.metrics_url, QUERY, DOCUMENTS, scores)
