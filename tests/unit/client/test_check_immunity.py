"""A message of the SDK sets the time of its first back-check: by field or RocketMQ's property."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from tests.unit.broker.wire import T0, eventually, serving
from tests.unit.client.apache_like import play_apache, refuse_late_decisions
from tests.unit.client.test_producer import check_all, halves
from tests.unit.client.test_producing import bodies
from tests.unit.logged import events

IMMUNE = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: One message more than the limit for transactions that share a request.
MANY = 65


@pytest.mark.parametrize("is_apache", [False, True])
@pytest.mark.parametrize(("seconds", "first_ms"), [("60", 60_000), ("0", 0), ("soon", 2_000)])
async def test_a_message_chooses_its_first_check_before_its_producer_does(
    tmp_path: Path, seconds: str, first_ms: int, *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        async with AsyncProducer(server.name_address, "pay", check_after_s=2.0) as producer:
            await producer.send_half("orders", b"1", properties={IMMUNE: seconds})
            await producer.send_half("orders", b"2")
        assert [half.next_at_ms - T0 for half in halves(server)] == [first_ms, 2_000]


@pytest.mark.parametrize("count", [3, MANY])
async def test_of_several_messages_the_longest_time_counts(tmp_path: Path, count: int) -> None:
    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay") as producer,
    ):
        times = ["30", "90", *["5"] * (count - 2)]
        await (await producer._core.started()).hold(
            "t", [Message(topic="orders", properties={IMMUNE: one}) for one in times]
        )
        first, *_ = halves(server)
        assert first.next_at_ms == T0 + 90_000


class Listener:
    """Listener that leaves each transaction to its check."""

    def execute_local_transaction(self, _message: Message, _arg: object) -> None:
        return None

    def check_local_transaction(self, _message: Received) -> Resolution:
        return Resolution.UNKNOWN


@pytest.mark.parametrize("is_apache", [False, True])
@pytest.mark.parametrize(
    ("after_s", "first_ms"), [(60, 60_000), (0, 0), (0.2, 1_000), (86_400, 86_400_000)]
)
async def test_check_after_s_sets_the_first_check_of_a_message(
    tmp_path: Path, after_s: float, first_ms: int, *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        async with AsyncProducer(
            server.name_address, "pay", check_after_s=2.0, listener=Listener()
        ) as producer:
            await producer.send_half("orders", b"1", check_after_s=after_s)
            message = Message(topic="orders", body=b"2", check_after_s=after_s)
            await producer.send_in_transaction(message)
            begun = producer.begin()
            await begun.send("orders", b"3", check_after_s=after_s)
            await producer.send_half("orders", b"4", check_after_s=None)
        assert [half.next_at_ms - T0 for half in halves(server)] == [*[first_ms] * 3, 2_000]


@pytest.mark.parametrize("is_apache", [False, True])
async def test_check_after_s_works_in_plain_programs_and_in_blocks(
    tmp_path: Path, *, is_apache: bool
) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger.create()
    async with serving(tmp_path / "broker") as server:
        if is_apache:
            play_apache(server)

        def work() -> None:
            db = sqlite3.connect(tmp_path / "shop.db")
            with Producer(server.name_address, "pay", ledger=ledger) as producer:
                producer.send_half("orders", b"1", check_after_s=30)
                with producer.transaction(db) as tx:
                    tx.send("orders", b"2", check_after_s=40)
                    tx.hold()
                    seen.extend(half.next_at_ms - T0 for half in halves(server))
            db.close()

        seen: list[int] = []
        await asyncio.to_thread(work)
        assert seen == [30_000, 40_000]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"check_after_s": -1}, "from 0 to 86400 seconds"),
        ({"check_after_s": 86_400.5}, "from 0 to 86400 seconds"),
        ({"check_after_s": float("nan")}, "from 0 to 86400 seconds"),
        ({"check_after_s": float("inf")}, "from 0 to 86400 seconds"),
        ({"check_after_s": "60"}, "a number of seconds"),
        ({"check_after_s": True}, "a number of seconds"),
        ({"check_after_s": 60, "properties": {IMMUNE: "60"}}, "the property .* is set, too"),
    ],
)
async def test_an_illegal_check_after_s_is_refused_and_nothing_is_held(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay") as producer,
    ):
        with pytest.raises(RequestRefused, match=f"check_after_illegal: .*{why}"):
            await producer.send_half("orders", b"1", **fields)
        assert halves(server) == []


async def test_an_ordinary_message_has_no_check(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay") as producer,
    ):
        message = Message(topic="orders", body=b"1", check_after_s=60)
        for send in (producer.send(message), producer.send_many([message])):
            with pytest.raises(RequestRefused, match="check_after_illegal: only transactions"):
                await send


class Committing(Listener):
    """Listener that commits, now and in its check."""

    def execute_local_transaction(self, _message: Message, _arg: object) -> Resolution:  # type: ignore[override]
        return Resolution.COMMIT

    def check_local_transaction(self, _message: Received) -> Resolution:
        return Resolution.COMMIT


async def test_a_decision_that_apache_takes_for_late_is_left_to_the_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's broker refuses decisions after the message's own time with code 604."""
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger.create()
    async with serving(tmp_path / "broker") as server:
        play_apache(server)
        refuse_late_decisions(server)

        def commit_block() -> str:
            db = sqlite3.connect(tmp_path / "shop.db")
            with (
                Producer(server.name_address, "shop", ledger=ledger) as producer,
                producer.transaction(db) as tx,
            ):
                tx.send("orders", b"1", check_after_s=1)
            db.close()
            return tx.state

        assert await asyncio.to_thread(commit_block) == "committed_untold"
        assert "commit_untold" in events(caplog)
        async with AsyncProducer(server.name_address, "pay", listener=Committing()) as producer:
            message = Message(topic="orders", body=b"2", check_after_s=1)
            done = await producer.send_in_transaction(message)
            assert (done.resolution, done.decided) == (Resolution.COMMIT, None)
            for resolution in (Resolution.COMMIT, Resolution.ROLLBACK):
                held = await producer.send_half("orders", b"3", check_after_s=1)
                with pytest.raises(Unavailable, match="decision_late"):
                    await producer.end(held, resolution)
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            await eventually(lambda: sorted(bodies(server)) == [b"2", b"3", b"3"])
