"""Endpoints that require API keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from support.keyed_endpoints import Endpoints, opened_endpoints


@pytest_asyncio.fixture
async def endpoints(tiny_rankers: dict[str, Path], tmp_path: Path) -> AsyncIterator[Endpoints]:
    async with opened_endpoints(tiny_rankers, tmp_path) as opened:
        yield opened
