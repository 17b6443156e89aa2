"""Objects from a producer to a handler, through a real broker."""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from escrowmq import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Message,
    Producer,
    Received,
    Resolution,
    SqlLedger,
)
from escrowmq.client.messages.codecs import JSON
from escrowmq.model.errors import RequestRefused
from escrowmq.testing import AsyncInProcessBroker, InProcessBroker
from tests.unit.client.order_types import (
    FIELDS,
    JSON_BODY,
    ORDERS,
    StructOrder,
)
from tests.unit.client.test_codecs import Money, Upper
from tests.unit.logged import events, facts

WAIT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(char if char.isalnum() else "-" for char in request.node.name)[:100]


def test_a_key_that_is_not_utf_8_is_refused(broker: InProcessBroker, topic: str) -> None:
    with (
        Producer(broker.address, group="orders") as producer,
        pytest.raises(RequestRefused, match="property_illegal: not UTF-8"),
    ):
        producer.send(topic, b"42", key="\ud800")
    assert broker.messages(topic) == []


@pytest.mark.parametrize(("body", "body_type"), ORDERS, ids=lambda one: type(one).__name__)
def test_an_object_is_json_for_everybody_and_an_object_for_us(
    broker: InProcessBroker,
    topic: str,
    body: object,
    body_type: Any,  # noqa: ANN401
) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send(topic, body, key=lambda _order: "k")
    (message,) = broker.messages(topic)
    assert message.body == JSON_BODY
    assert json.loads(message.body) == FIELDS
    assert (message.properties["content-type"], message.key) == ("application/json", "k")
    assert broker.values(topic, body_type) == [body]
    assert broker.messages(topic, body_type)[0].value == body
    assert message.decode(body_type) == body


def test_bytes_and_text_stay_as_they_are(broker: InProcessBroker, topic: str) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send(topic, b"\xff")
        producer.send(topic, "tea")
    assert [one.body for one in broker.messages(topic)] == [b"\xff", b"tea"]
    assert not any("content-type" in one.properties for one in broker.messages(topic))
    assert broker.values(topic, bytes) == [b"\xff", b"tea"]
    with pytest.raises(RequestRefused, match="body_not_decodable"):
        broker.values(topic, str)


async def test_every_way_to_send_takes_objects(topic: str) -> None:
    order = StructOrder(1)
    async with AsyncInProcessBroker(queue_count=1) as broker:
        checker = functools.partial(lambda _half: Resolution.UNKNOWN)
        async with AsyncProducer(broker.address, group="orders", checker=checker) as producer:
            await producer.send(topic, order)
            await producer.send_many([Message(topic=topic, body=order)] * 2)
            await producer.end(await producer.send_half(topic, order), Resolution.COMMIT)
            async with producer.begin() as begun:
                await begun.send(topic, order)
                await begun.send(topic, lambda: order)

        def program() -> None:
            with Producer(broker.address, group="others", checker=checker) as producer:
                producer.send(topic, order)
                producer.send_many([Message(topic=topic, body=order)] * 2)
                producer.end(producer.send_half(topic, order), Resolution.COMMIT)
                with producer.begin() as begun:
                    begun.send(topic, order)
                    begun.send(topic, lambda: order)

        await asyncio.to_thread(program)
        assert await broker.values(topic, StructOrder) == [order] * 12
        found = await broker.messages(topic, StructOrder)
        assert {one.properties["content-type"] for one in found} == {"application/json"}


class Shop:
    """Listener that keeps the objects that it is given."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def execute_local_transaction(self, message: Message, _arg: object) -> Resolution:
        self.given.append(message.body)
        return Resolution.COMMIT

    def check_local_transaction(self, half: Received) -> Resolution:
        self.given.append(half.decode(StructOrder))
        return Resolution.COMMIT


async def test_a_listener_is_given_the_object(topic: str) -> None:
    order, shop = StructOrder(1), Shop()
    async with AsyncInProcessBroker(queue_count=1) as broker:
        async with AsyncProducer(broker.address, group="orders", listener=shop) as producer:
            await producer.send_in_transaction(Message(topic=topic, body=order))
            await producer.send_half(topic, StructOrder(2))
            await broker.advance(seconds=60)
            await broker.run_checks()

        def program() -> None:
            with Producer(broker.address, group="others", listener=shop) as producer:
                producer.send_in_transaction(Message(topic=topic, body=order))

        await asyncio.to_thread(program)
        assert shop.given == [order, StructOrder(2), order]
        assert await broker.values(topic, StructOrder) == shop.given


def test_a_message_that_is_sent_again_is_encoded_again(broker: InProcessBroker, topic: str) -> None:
    order = StructOrder(1)
    message = Message(topic=topic, body=order)
    with Producer(broker.address, group="orders") as producer:
        producer.send(message)
        order.id = 2
        producer.send(message)
        order.id = 3
        producer.send_many([message])
    assert [one.id for one in broker.values(topic, StructOrder)] == [1, 2, 3]


async def test_the_same_holds_for_an_async_producer(topic: str) -> None:
    order = StructOrder(1)
    message = Message(topic=topic, body=order)
    async with AsyncInProcessBroker(queue_count=1) as broker:
        async with AsyncProducer(broker.address, group="orders") as producer:
            await producer.send(message)
            order.id = 2
            await producer.send_many([message])
            with pytest.raises(RequestRefused, match="body_not_encodable"):
                await producer.send_many(
                    [Message(topic=topic, body=Money(1)), Message(topic=topic, body=StructOrder(3))]
                )
        # `send_many` tries every message, even after an error.
        assert [one.id for one in await broker.values(topic, StructOrder)] == [1, 2, 3]


def test_of_many_nothing_is_sent_if_one_cannot_be_encoded(
    broker: InProcessBroker, topic: str
) -> None:
    bad = Message(topic=topic, body={"price": Money(1)})
    with Producer(broker.address, group="orders") as producer:
        producer.send(topic, StructOrder(1))
        with pytest.raises(RequestRefused, match=r"body_not_encodable.*path='\$\.price'"):
            producer.send_many([Message(topic=topic, body=StructOrder(2)), bad])
    assert broker.values(topic, StructOrder) == [StructOrder(1)]


def test_a_transaction_refuses_at_send_and_sends_what_it_was_given(
    broker: InProcessBroker, topic: str, tmp_path: Path
) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger.create()
    with (
        closing(sqlite3.connect(tmp_path / "shop.db")) as db,
        Producer(broker.address, group="orders", ledger=ledger) as producer,
    ):
        db.execute("CREATE TABLE orders (id integer)")
        with producer.transaction(db) as tx:
            with pytest.raises(RequestRefused, match=r"body_not_encodable.*path='\$\[0\]'"):
                tx.send(topic, [Money(5)])
            db.execute("INSERT INTO orders VALUES (1)")
            order = StructOrder(1)
            message = tx.send(topic, order, key=lambda one: one.id)
            order.id = 9
            late = tx.send(topic, lambda: order, key=lambda one: one.id)
            changed = tx.send(topic, StructOrder(0))
            changed.body = StructOrder(4)
            assert message.body is order
        assert tx.state == "committed"
        assert callable(late.body)
    sent = broker.messages(topic, StructOrder)
    assert [(one.value.id, one.key) for one in sent] == [(1, "1"), (9, "9"), (4, "")]


def test_the_function_for_a_key_runs_where_the_database_is(
    broker: InProcessBroker, topic: str
) -> None:
    threads: list[str] = []

    def key() -> str:
        threads.append(threading.current_thread().name)
        return "k"

    with Producer(broker.address, group="orders", checker=lambda _: None) as producer:
        producer.send(topic, b"1", key=key)
        with producer.begin() as begun:
            begun.send(topic, b"2", key=key)
    assert threads == [threading.current_thread().name] * 2
    assert [one.key for one in broker.messages(topic)] == ["k", "k"]


def test_a_body_that_does_not_fit_is_retried_and_then_a_dead_letter(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker(queue_count=1) as broker:
        with Producer(broker.address, group="orders") as producer:
            bad = producer.send(topic, b'{"id": "many"}').message_id
            producer.send(topic, StructOrder(2))
        got: list[StructOrder] = []
        consumer = Consumer(broker.address, group="ship", retries_max=1)

        @consumer.subscribe(topic)
        def ship(order: StructOrder) -> None:
            got.append(order)

        with consumer:
            until(lambda: len(facts(caplog, "body_not_decodable")) == 1 and got)
            # The next message did not wait for the bad one.
            assert got == [StructOrder(2)]
            assert broker.dead_letters("ship") == []
            until(lambda: pushed(broker) and len(facts(caplog, "body_not_decodable")) == 2)
            until(lambda: broker.dead_letters("ship"))
        (letter,) = broker.dead_letters("ship")
        assert letter.body == b'{"id": "many"}'
    assert got == [StructOrder(2)]
    first, second = facts(caplog, "body_not_decodable")
    assert (first["message_id"], first["retries"], second["retries"]) == (bad, 0, 1)
    assert first["why"] == "Expected `int`, got `str` - at `$.id`"
    (given_up,) = facts(caplog, "message_given_up")
    assert (given_up["message_id"], given_up["why"]) == (bad, first["why"])
    assert "handler_failed" not in events(caplog)


def pushed(broker: InProcessBroker) -> bool:
    broker.advance(seconds=10)
    return True


def until(is_so: Callable[[], object]) -> None:
    """Wait up to about 20 seconds until the condition is true, or fail."""
    tries = threading.Event()
    for _ in range(2_000):
        if is_so():
            return
        tries.wait(0.01)
    pytest.fail("it did not happen")


def test_a_loop_may_ask_for_a_type(broker: InProcessBroker, topic: str) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send(topic, StructOrder(1))
        producer.send(topic, b"no JSON")
        producer.send(topic, StructOrder(2))
    with Consumer(broker.address, group=topic) as consumer:
        messages = consumer.messages(topic, body_type=StructOrder)
        assert [next(messages).value.id for _ in range(2)] == [1, 2]
        messages.close()


def test_a_codec_of_ones_own(broker: InProcessBroker, topic: str) -> None:
    with Producer(broker.address, group="orders", codec=Upper()) as producer:
        producer.send(topic, {"text": "tea"})
    with Producer(broker.address, group="orders") as producer:
        producer.send(topic, {"text": "Milk"})
    upper, milk = broker.messages(topic)
    assert (upper.body, upper.properties["content-type"]) == (b"TEA", "text/upper")
    assert upper.decode(dict, codec=Upper()) == {"text": "tea"}
    with pytest.raises(RequestRefused, match=r"content type is text/upper"):
        upper.decode(dict)
    assert milk.decode(dict) == {"text": "Milk"}

    got: list[dict[str, str]] = []
    consumer = Consumer(broker.address, group=topic, codec=(JSON, Upper()))

    @consumer.subscribe(topic)
    def ship(order: dict[str, str]) -> None:
        got.append(order)

    with consumer:
        until(lambda: len(got) == 2)
    assert sorted(got, key=str) == [{"text": "Milk"}, {"text": "tea"}]


async def test_an_async_consumer_reads_the_same(topic: str) -> None:
    async with AsyncInProcessBroker(queue_count=1) as broker:
        async with AsyncProducer(broker.address, group="orders") as producer:
            await producer.send(topic, StructOrder(1))
        got: asyncio.Queue[StructOrder] = asyncio.Queue()
        consumer = AsyncConsumer(broker.address, group="ship")

        @consumer.subscribe(topic)
        async def ship(message: Received[StructOrder]) -> None:
            await got.put(message.value)

        async with consumer:
            assert await asyncio.wait_for(got.get(), WAIT_S) == StructOrder(1)
        async with AsyncConsumer(broker.address, group="loop") as looping:
            async for message in looping.messages(topic, body_type=StructOrder):
                assert message.value.id == 1
                break


def test_a_typed_handler_has_an_effect_that_comes_once(
    broker: InProcessBroker, topic: str, tmp_path: Path
) -> None:
    SqlLedger(f"sqlite:///{tmp_path / 'points.db'}").create()
    with closing(sqlite3.connect(tmp_path / "points.db")) as db:
        db.execute("CREATE TABLE points (order_id integer)")
    consumer = Consumer(broker.address, group=topic, ordered=True)
    deliveries = threading.Semaphore(0)

    @consumer.subscribe(topic)
    def credit(message: Received[StructOrder]) -> None:
        try:
            with (
                closing(sqlite3.connect(tmp_path / "points.db")) as db,
                consumer.transaction(db, message),
            ):
                db.execute("INSERT INTO points VALUES (?)", (message.value.id,))
        finally:
            deliveries.release()

    with Producer(broker.address, group="orders") as producer:
        sent = producer.send(topic, StructOrder(7))
        producer.send(topic, StructOrder(7), message_id=sent.message_id)
    with consumer:
        assert deliveries.acquire(timeout=WAIT_S)
        assert deliveries.acquire(timeout=WAIT_S)
    assert broker.lag(topic, topic) == 0
    with closing(sqlite3.connect(tmp_path / "points.db")) as db:
        assert db.execute("SELECT order_id FROM points").fetchall() == [(7,)]
