"""The audit of consumers' progress, without Spark."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from escrowmq.broker.pop.receipts import Receive, ReceivedBatch
from escrowmq.broker.server import Server
from escrowmq.model.catalog import Group
from escrowmq.model.futures import resolve
from escrowmq.pipeline.audit.consumers import ExaminedGroups, progress_cases
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.testing import InProcessBroker
from escrowmq.testing.calls import accepted
from tests.spark.topics import row, send

HOUR_MS = 3_600_000


async def pop(server: Server) -> ReceivedBatch:
    """Receive one message, which a consumer holds for three hours."""
    broker = server.broker
    accepted(await broker.writer.submit(broker.groups.put(Group(name="readers"))))
    answer: asyncio.Future[ReceivedBatch] = asyncio.get_running_loop().create_future()
    wanted = Receive(group="readers", topic="orders", invisible_ms=3 * HOUR_MS, count_max=1)
    broker.popping.receive(wanted, partial(resolve, answer))
    return await answer


def findings(broker: InProcessBroker) -> list[FindingName]:
    pins = take_pins([broker.broker_address])
    return [name for name, _ in progress_cases(pins, (), HOUR_MS, ExaminedGroups(set()))]


def test_a_group_is_stuck_only_if_no_consumer_holds_its_messages(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path, queue_count=1) as broker:
        for body in (b"1", b"2"):
            send(broker, row(body))
        assert len(broker._run(pop(broker._running)).messages) == 1
        broker.advance(ms=2 * HOUR_MS)
        assert findings(broker) == []
        # The consumer is gone: its message is visible again, and no other one receives it.
        broker.advance(ms=2 * HOUR_MS)
        assert findings(broker) == [FindingName.CONSUMER_STUCK]
