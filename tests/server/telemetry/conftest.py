"""The log as a server writes it, and endpoints whose calls are logged."""

import io
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from farrank_calls.telemetry.log_output import JsonLines
from support.keyed_endpoints import Endpoints, opened_endpoints

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Return the output so far of all loggers of the process, including debug messages."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.setLevel(level)
    root.removeHandler(handler)


@pytest_asyncio.fixture
async def endpoints(tiny_rankers: dict[str, Path], tmp_path: Path) -> AsyncIterator[Endpoints]:
    """Endpoints that log every call."""
    async with opened_endpoints(tiny_rankers, tmp_path, ok_sample=1.0) as opened:
        yield opened
