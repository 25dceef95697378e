"""A cancelled call ends at the server, too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from farrank_client import AsyncClient

if TYPE_CHECKING:
    from support.scripted_server import ScriptedServer


async def test_cancelling_the_task_cancels_the_call(scripted: ScriptedServer) -> None:
    scripted.hold = True
    async with AsyncClient(scripted.target) as client:
        task = asyncio.create_task(client.rerank("q", ["x"]))
        assert await asyncio.to_thread(scripted.arrived.wait, 30)

        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(scripted.caller_left.wait, 30)


async def test_cancelling_during_a_pause_sends_nothing_more(scripted: ScriptedServer) -> None:
    scripted.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback="20000")
    async with AsyncClient(scripted.target) as client:
        task = asyncio.create_task(client.rerank("q", ["x"]))
        assert await asyncio.to_thread(scripted.arrived.wait, 30)
        await asyncio.sleep(0.3)  # The refusal is on its way, or the pause before the retry has begun.

        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.2)

    assert len(scripted.requests) == 1
