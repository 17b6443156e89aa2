"""A plain function around an async handler or checker: what it returns is not done yet."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq import Consumer, Producer, Received, Resolution
from escrowmq.testing import InProcessBroker
from tests.unit.client.order_types import StructOrder
from tests.unit.client.test_typed_bodies import WAIT_S, until
from tests.unit.logged import facts


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as broker:
        yield broker


def wrapped(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that is not aware of async functions."""

    @functools.wraps(handler)
    def call(*args: object) -> Any:  # noqa: ANN401
        return handler(*args)

    return call


def test_an_async_handler_in_a_plain_decorator_is_awaited(
    broker: InProcessBroker,
) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send("paid", StructOrder(1))
    got: list[StructOrder] = []
    handled = threading.Event()
    consumer = Consumer(broker.address, group="ship")

    @consumer.subscribe("paid")
    @wrapped
    async def ship(order: StructOrder) -> None:
        await asyncio.sleep(0)
        got.append(order)
        handled.set()

    with consumer:
        assert handled.wait(WAIT_S)
    assert got == [StructOrder(1)]
    assert broker.lag("paid", "ship") == 0


def test_an_async_checker_in_a_plain_decorator_is_awaited(broker: InProcessBroker) -> None:
    @wrapped
    async def check(_half: Received) -> Resolution:
        await asyncio.sleep(0)
        return Resolution.COMMIT

    with Producer(broker.address, group="orders", checker=check) as producer:
        producer.begin().send("checked", b"42")
        broker.advance(seconds=60)
        broker.run_checks()
        assert [one.body for one in broker.messages("checked")] == [b"42"]


def test_a_message_whose_handler_returns_a_generator_comes_again(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send("paid", StructOrder(1))
    consumer = Consumer(broker.address, group="ship", retries_max=0)

    @consumer.subscribe("paid")
    def ship(order: StructOrder) -> object:
        return (one for one in [order])

    with consumer:
        until(lambda: broker.dead_letters("ship"))
    (failed,) = facts(caplog, "handler_failed")
    assert "handler_illegal" in str(failed["why"])
