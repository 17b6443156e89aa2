"""``send_in_transaction`` refuses what RocketMQ's clients refuse, before anything is sent.

The other ways to send take an empty body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS
from tests.unit.broker.wire import serving
from tests.unit.client.apache_like import play_apache
from tests.unit.client.test_producer import halves
from tests.unit.client.test_producing import bodies


class Listener:
    """Listener that commits, and counts its local transactions."""

    def __init__(self) -> None:
        self.executed = 0

    def execute_local_transaction(self, _message: Message, _arg: object) -> Resolution:
        self.executed += 1
        return Resolution.COMMIT

    def check_local_transaction(self, _message: Received) -> Resolution:
        return Resolution.UNKNOWN


def made(**fields: Any) -> Callable[[], Message]:  # noqa: ANN401 - fields of a message
    return lambda: Message(**{"topic": "orders", "body": b"1", **fields})


ILLEGAL = [
    pytest.param(lambda: None, "message_illegal", id="no message"),
    pytest.param(lambda: "orders", "message_illegal", id="a text"),
    pytest.param(made(body=b""), "body_empty", id="no bytes"),
    pytest.param(made(body=""), "body_empty", id="no characters"),
    pytest.param(made(body=bytearray()), "body_empty", id="no bytes to change"),
    pytest.param(made(body=lambda: b""), "body_empty", id="a function that returns no bytes"),
    pytest.param(made(body=None), "body_illegal", id="None"),
    pytest.param(made(body=bytes(BODY_BYTES_MAX + 1)), "body_too_large", id="a large body"),
    pytest.param(made(topic=""), "topic_illegal", id="no topic"),
    pytest.param(made(topic=" "), "topic_illegal", id="a blank topic"),
    pytest.param(made(topic="a.b"), "topic_illegal", id="a dot"),
    pytest.param(made(topic="grün"), "topic_illegal", id="a letter beyond ASCII"),
    pytest.param(made(topic="t" * 128), "topic_illegal", id="a long topic"),
    pytest.param(made(topic="%RETRY%" + "t" * 121), "topic_illegal", id="a long retry topic"),
    pytest.param(made(topic=7), "topic_illegal", id="a number"),
    *[pytest.param(made(topic=name), "topic_of_system", id=name) for name in sorted(SYSTEM_TOPICS)],
]


@pytest.mark.parametrize(("make", "code"), ILLEGAL)
def test_an_illegal_message_is_refused_before_anything_is_sent(
    make: Callable[[], Any], code: str
) -> None:
    """No broker is there: a request would fail with another error."""
    listener = Listener()
    producer = Producer("127.0.0.1:1", "pay", listener=listener)
    with pytest.raises(RequestRefused) as caught:
        producer.send_in_transaction(make())
    assert caught.value.code == code

    async def work() -> None:
        again = AsyncProducer("127.0.0.1:1", "pay", listener=listener)
        with pytest.raises(RequestRefused) as caught:
            await again.send_in_transaction(make())
        assert caught.value.code == code

    asyncio.run(work())
    assert listener.executed == 0


@pytest.mark.parametrize("is_apache", [False, True])
@pytest.mark.parametrize(
    "make", [made(topic="t" * 127), made(topic="%a|b_c-D9"), made(body=bytes(BODY_BYTES_MAX))]
)
async def test_a_message_at_the_limit_is_sent(
    tmp_path: Path, make: Callable[[], Message], *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        async with AsyncProducer(server.name_address, "pay", listener=Listener()) as producer:
            done = await producer.send_in_transaction(make())
        assert done.decided is not None
        assert bodies(server, make().topic) == [make().body]


@pytest.mark.parametrize("is_apache", [False, True])
async def test_other_ways_to_send_take_an_empty_body(tmp_path: Path, *, is_apache: bool) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)

        def work() -> None:
            with Producer(server.name_address, "pay") as producer:
                producer.send("orders")
                producer.end(producer.send_half("orders"), Resolution.COMMIT)
                with producer.begin() as begun:
                    begun.send("orders")

        await asyncio.to_thread(work)
        assert bodies(server) == [b""] * 3
        assert len(halves(server)) == 2
