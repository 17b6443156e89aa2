"""Transactions while no name server answers but the broker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiosqlite
import pytest

from escrowmq.broker.server import Server
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network import routing
from escrowmq.client.producer.producer import AsyncProducer
from escrowmq.model.errors import Unavailable
from tests.unit.broker.wire import make_topic, serving, visible

PAID = "order-paid"


class Front:
    """Proxy in front of the name server, which can stop while the broker keeps running."""

    def __init__(self, server: Server) -> None:
        host, _, port = server.name_address.rpartition(":")
        self._behind = (host, int(port))
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def come(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def go(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        await asyncio.gather(*self._relays)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        there_reader, there_writer = await asyncio.open_connection(*self._behind)
        self._writers |= {writer, there_writer}
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


class Scene:
    def __init__(self, server: Server, front: Front, producer: AsyncProducer, path: Path) -> None:
        self.server = server
        self.front = front
        self.producer = producer
        self._path = path

    async def pay(self, number: int, topic: str = PAID, *, is_leaving: bool = False) -> str:
        async with aiosqlite.connect(self._path) as db:
            async with self.producer.transaction(db) as tx:
                await db.execute("INSERT INTO orders VALUES (?)", (number,))
                tx.send(topic, str(number))
                if is_leaving:
                    await self.front.go()
            return tx.state

    async def orders(self) -> list[int]:
        async with aiosqlite.connect(self._path) as db:
            rows = await db.execute_fetchall("SELECT id FROM orders ORDER BY id")
        return [row[0] for row in rows]

    def paid(self) -> list[bytes]:
        return [one.body for one in visible(self.server, PAID, 0)]


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    # Routes expire at once, so each use asks the name server.
    monkeypatch.setattr(routing, "ROUTE_S", 0.0)
    path = tmp_path / "shop.db"
    ledger = SqlLedger(f"sqlite:///{path}")
    ledger.create()
    async with aiosqlite.connect(path) as db:
        await db.execute("CREATE TABLE orders (id integer)")
        await db.commit()
    async with serving(tmp_path / "broker") as server, fronted(server) as front:
        await make_topic(server, PAID)
        async with AsyncProducer(front.address, "shop", ledger=ledger, timeout_s=0.3) as producer:
            yield Scene(server, front, producer, path)


@asynccontextmanager
async def fronted(server: Server) -> AsyncIterator[Front]:
    front = Front(server)
    await front.come()
    try:
        yield front
    finally:
        await front.go()


async def test_a_block_commits_to_a_topic_whose_route_is_known(scene: Scene) -> None:
    assert await scene.pay(1) == "committed"
    assert await scene.pay(2, is_leaving=True) == "committed"
    assert await scene.pay(3) == "committed"
    assert await scene.orders() == [1, 2, 3]
    assert scene.paid() == [b"1", b"2", b"3"]


async def test_a_block_rolls_back_if_its_topic_has_no_known_route(scene: Scene) -> None:
    await scene.pay(1)
    await scene.front.go()
    with pytest.raises(Unavailable, match="name_server_unreachable"):
        await scene.pay(2, "elsewhere")
    assert await scene.orders() == [1]
    await scene.front.come()
    assert await scene.pay(3, "elsewhere") == "committed"
    assert await scene.orders() == [1, 3]
