"""The HTTP endpoint over a real socket in this process: a real engine, tiny rankers, stored candidates."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from support.http_connection import Connections
from support.http_endpoint import Opened, OpenEndpoint, opened_endpoint
from support.memory_first_stage import MemoryFirstStage


@pytest.fixture
def open_endpoint(tiny_rankers: dict[str, Path]) -> OpenEndpoint:
    return partial(opened_endpoint, tiny_rankers)


@pytest_asyncio.fixture
async def endpoint(open_endpoint: OpenEndpoint) -> AsyncIterator[Opened]:
    async with open_endpoint() as opened:
        yield opened


@pytest.fixture(scope="module")
def first_stage() -> MemoryFirstStage:
    return MemoryFirstStage()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_endpoint(
    tiny_rankers: dict[str, Path], first_stage: MemoryFirstStage
) -> AsyncIterator[Opened]:
    """One endpoint for the tests of a file, whose loop scope must be the module."""
    async with opened_endpoint(tiny_rankers, first_stage=first_stage) as opened:
        yield opened


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connections]:
    async with Connections() as opened:
        yield opened
