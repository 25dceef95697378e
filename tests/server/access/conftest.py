"""Endpoints that require API keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from support.keyed_doors import Doors, opened_doors


@pytest_asyncio.fixture
async def doors(tiny_rankers: dict[str, Path], tmp_path: Path) -> AsyncIterator[Doors]:
    async with opened_doors(tiny_rankers, tmp_path) as opened:
        yield opened
