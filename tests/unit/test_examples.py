"""Each example runs and does what it says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sqlalchemy import NullPool, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from escrowmq import Producer, SqlLedger
from escrowmq.testing import InProcessBroker
from examples import async_worker, fastapi_orders, four_branches
from examples.where import Place
from tests.unit.broker.wire import eventually
from tests.unit.repository import ROOT


@pytest.mark.parametrize("is_given", [False, True], ids=["own broker", "a broker given"])
def test_the_plain_script(is_given: bool) -> None:  # noqa: FBT001
    with InProcessBroker() as broker:
        environ = {"NAMESRV_ADDR": broker.address if is_given else ""}
        done = subprocess.run(
            [sys.executable, "-m", "examples.plain_script"],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.splitlines() == [
            "43 was declined: no order, no message",
            "orders: [42]",
            "message: 42",
        ]
        assert len(broker.messages("order-paid")) == is_given


async def test_the_order_service(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=NullPool)
    fastapi_orders.Base.metadata.create_all(engine)
    ledger = SqlLedger(engine)
    ledger.create()

    with InProcessBroker() as broker, Producer(broker.address, "orders", ledger=ledger) as producer:
        app = fastapi_orders.create_app(engine, producer)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            made = await client.post("/orders")
            assert (made.status_code, made.json()) == (201, {"id": 1})
            # Order 1 is paid twice, and order 2 does not exist.
            paid = [await client.post(f"/orders/{number}/pay") for number in (1, 1, 2)]
        assert [answer.status_code for answer in paid] == [200, 200, 404]
        assert [one.body for one in broker.messages("order-created")] == [b"1"]
        assert [one.body for one in broker.messages("order-paid")] == [b"1"]


def test_the_order_service_as_it_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")
    paths = fastapi_orders.service().openapi()["paths"]
    assert sorted(paths) == ["/orders", "/orders/{number}/pay"]


async def test_the_async_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'ship.db'}", poolclass=NullPool)
    await async_worker.make_tables(engine)
    answers = [True]

    async def is_closed() -> bool:
        return bool(answers and answers.pop())

    async def shipped() -> list[int]:
        async with AsyncSession(engine) as session:
            found = await session.scalars(select(async_worker.Shipment.order_id))
            return sorted(found)

    monkeypatch.setattr(async_worker, "is_closed", is_closed)
    with InProcessBroker() as broker:
        with Producer(broker.address, group="orders") as producer:
            sent = producer.send("order-paid", b"1")
            producer.send("order-paid", b"1", message_id=sent.message_id)
            producer.send("order-paid", b"not a number")
        async with (
            async_worker.create_producer(broker.address, engine) as told,
            async_worker.create_worker(broker.address, engine, told),
        ):
            await eventually(lambda: len(broker.dead_letters("shipping")) == 1)
            # The first delivery finds the warehouse closed. The broker retries it a minute later.
            async with asyncio.timeout(20):
                while await shipped() != [1]:
                    await asyncio.to_thread(broker.advance, seconds=60)
        assert broker.lag("order-paid", "shipping") == 0
        assert await shipped() == [1]
        assert [one.body for one in broker.messages("order-shipped")] == [b"1"]
    await engine.dispose()


def test_the_four_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    with InProcessBroker() as broker:
        four_branches.main(Place(broker.address, broker), tmp_path)
        assert broker.undecided() == []
    everything = [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert four_branches.report(tmp_path) == dict.fromkeys(four_branches.TABLES, everything)
    printed = capsys.readouterr().out
    assert printed.count("the order service died") == 2
    assert printed.endswith("all agree\n")
