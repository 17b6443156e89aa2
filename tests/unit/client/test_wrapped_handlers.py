"""Plain functions around async handlers and checkers: the SDK must await what they return."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq import Consumer, Producer, Received, RequestRefused, Resolution, RetryLater
from escrowmq.testing import InProcessBroker
from tests.unit.client.order_types import StructOrder
from tests.unit.client.test_typed_bodies import WAIT_S, until
from tests.unit.logged import facts


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as broker:
        yield broker


def wrapped(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a handler without regard for async functions."""

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


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_an_error_that_ends_programs_fails_the_handler_alone(
    broker: InProcessBroker,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
    kind: str,
) -> None:
    consumer = Consumer(broker.address, group="ship", retries_max=0)

    def ship(_message: Received) -> None:
        raise error

    async def ship_later(_message: Received) -> None:
        raise error

    consumer.subscribe("paid")(ship if kind == "plain" else ship_later)
    with Producer(broker.address, group="orders") as producer:
        producer.send("paid", b"42")
        with consumer:
            until(lambda: broker.dead_letters("ship"))
            # The event loop that all plain clients share keeps running.
            producer.send("other", b"43")
    (failed,) = facts(caplog, "handler_failed")
    assert str(failed["why"]).startswith(error.__name__)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_an_error_that_ends_programs_fails_the_check_alone(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def check(_half: Received) -> Resolution:
        raise error

    with Producer(broker.address, group="orders", checker=check) as producer:
        producer.begin().send("checked", b"42")
        broker.advance(seconds=60)
        broker.run_checks()
        producer.send("other", b"43")
    assert len(broker.undecided()) == 1
    (failed,) = facts(caplog, "check_failed")
    assert error.__name__ in str(failed["why"])


def test_a_time_to_come_again_is_a_number() -> None:
    assert RetryLater(after_ms=1_500.5).after_ms == 1_500  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="after_ms is a number, not a str"):
        RetryLater(after_ms="soon")  # type: ignore[arg-type]


def test_a_subscription_has_texts() -> None:
    consumer = Consumer("127.0.0.1:1", group="ship")
    with pytest.raises(RequestRefused, match=r'topic_illegal: .*subscribe\("orders"\)'):
        consumer.subscribe(lambda _message: None)  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="tag_illegal"):
        consumer.subscribe("orders", ["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="address_illegal"):
        Consumer(None, group="ship")  # type: ignore[arg-type]
