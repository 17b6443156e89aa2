"""A listener's local transaction runs only after its half message is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.client.messages.messages import Message
from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import RequestRefused
from tests.unit.broker.wire import serving
from tests.unit.client.test_unsafely_stored import Listener


async def test_a_half_message_that_is_refused_runs_no_local_transaction(tmp_path: Path) -> None:
    listener = Listener()
    async with serving(tmp_path, topics={"auto_create": False}) as server:
        producer = Producer(server.name_address, "pay", listener=listener)
        with pytest.raises(RequestRefused, match="topic_unknown"):
            await asyncio.to_thread(
                producer.send_in_transaction, Message(topic="missing", body=b"1")
            )
        await asyncio.to_thread(producer.close)
        assert server.broker.store.durable_rows == 0
    assert listener.executed == 0


async def test_without_a_listener_nothing_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        producer = Producer(server.name_address, "pay")
        with pytest.raises(RequestRefused, match="listener"):
            await asyncio.to_thread(
                producer.send_in_transaction, Message(topic="orders", body=b"1")
            )
        await asyncio.to_thread(producer.close)
        assert server.broker.store.durable_rows == 0
