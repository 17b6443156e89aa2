"""A short run of ``soak``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.broker.wire import serving
from tests.unit.client.soak import ROUND, TASKS, THREADS, judge, soak_tasks, soak_threads


async def test_many_threads_share_a_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        sent = await asyncio.to_thread(soak_threads, server.name_address, lambda done: done == 4)
        assert sent == THREADS * 4 * ROUND
        await asyncio.to_thread(judge, server.broker_address, sent)


async def test_many_tasks_share_a_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        sent = await soak_tasks(server.name_address, lambda done: done == 1)
        assert sent == TASKS * ROUND
        await asyncio.to_thread(judge, server.broker_address, sent)
