"""Our SDK on an Apache RocketMQ broker: what works, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.messages.handling import GiveUp
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import StoredMessage, decode_many
from tests.interop import remoting
from tests.interop.apache import ApacheRocketMQ
from tests.interop.hearing import ARRIVE_S, Heard, Listener, OutOfStock, failing, hearing, refused
from tests.interop.scenario import eventually, fresh
from tests.interop.selfcheck import quick_apache
from tests.ledger.market import PAID
from tests.ledger.shops import GROUP, Order, Shop, sqlite_shop

pytestmark = pytest.mark.xdist_group("sdk_on_apache")

#: A topic that its first message creates gets the queue count of that broker's default topic.
LENT_QUEUES = 8


@pytest.fixture(scope="module")
def apache() -> Iterator[ApacheRocketMQ]:
    with quick_apache() as broker:
        yield broker


@pytest.fixture
def topic(apache: ApacheRocketMQ) -> str:
    """A topic with one queue, so that a later message proves that an earlier one never came."""
    name = fresh("sdk")
    apache.create_topic(name, queues=1)
    return name


@pytest.fixture
def producer(apache: ApacheRocketMQ) -> Iterator[Producer]:
    with Producer(apache.name_server, fresh("plain")) as producer:
        yield producer


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = sqlite_shop(tmp_path)
    yield shop
    shop.close()


# Ordinary messages.


def test_a_message_arrives_as_it_was_sent(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    sent = producer.send(
        topic, "grün", key="42", keys=("more",), tag="paid", properties={"colour": "green"}
    )
    with hearing(apache, topic) as heard:
        heard.until("grün".encode())
    (message,) = heard.messages
    assert message.message_id == sent.message_id
    assert (message.topic, message.keys, message.tag) == (topic, ("42", "more"), "paid")
    assert message.properties["colour"] == "green"
    assert (message.queue_id, message.queue_offset) == (sent.queue_id, sent.queue_offset)
    assert (message.retries, message.transaction_id) == (0, "")


@pytest.mark.parametrize("is_made_first", [True, False], ids=["a made topic", "its first message"])
def test_keys_stay_in_their_queue_and_in_order(
    apache: ApacheRocketMQ, producer: Producer, *, is_made_first: bool
) -> None:
    topic = fresh("keys")
    if is_made_first:
        apache.create_topic(topic, queues=5)
    messages = [
        Message(topic=topic, body=f"{key}-{number}", key=f"key-{key}")
        for number in range(10)
        for key in range(12)
    ]
    before, after = messages[:60], messages[60:]
    sent = [producer.send(message) for message in before[:12]]
    sent += producer.send_many(before[12:])
    # A producer that starts later finds the topic and its current count of queues.
    with Producer(apache.name_server, fresh("later")) as later:
        sent += later.send_many(after)
    queues: dict[str, set[int]] = defaultdict(set)
    for message, one in zip(messages, sent, strict=True):
        queues[str(message.key)].add(one.queue_id)
    assert all(len(one) == 1 for one in queues.values()), queues
    used = set.union(*queues.values())
    assert 1 < len(used) <= (5 if is_made_first else LENT_QUEUES)
    with hearing(apache, topic, is_ordered=True) as heard:
        heard.wait(lambda bodies: len(bodies) == len(messages))
    for key in {message.key for message in messages}:
        numbers = [int(one.body.split(b"-")[1]) for one in heard.messages if one.key == key]
        assert numbers == list(range(10))


def test_a_delayed_message_arrives_when_its_time_has_come(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    with hearing(apache, topic) as heard:
        due_at_ms = time.time() * 1_000 + 2_000
        producer.send(topic, b"later", delay_ms=2_000)
        producer.send(topic, b"now")
        assert heard.until(b"later") == [b"now", b"later"]
    # Apache's timer ticks once a second.
    assert heard.messages[-1].visible_at_ms >= due_at_ms - 1_000


# Transactions.


@pytest.fixture
def ledgered(apache: ApacheRocketMQ, shop: Shop) -> Iterator[Producer]:
    with Producer(apache.name_server, fresh("shop"), ledger=shop.ledger()) as producer:
        yield producer


def test_a_block_that_commits_sends_and_one_that_fails_does_not(
    apache: ApacheRocketMQ, ledgered: Producer, shop: Shop, topic: str
) -> None:
    engine = shop.engine()
    with failing(), ledgered.transaction(Session(engine)) as tx:
        tx.db.add(Order(number=1))
        tx.send(topic, b"1")
        raise OutOfStock
    with ledgered.transaction(Session(engine)) as tx:
        tx.db.add(Order(number=2))
        tx.send(topic, b"2", key="2")
    assert tx.state == "committed"
    connection = shop.connect()
    with ledgered.transaction(connection) as plain:
        connection.execute("INSERT INTO orders (number) VALUES (3)")
        plain.send(topic, b"3")
    connection.close()
    with hearing(apache, topic) as heard:
        assert heard.until(b"3") == [b"2", b"3"]
    assert heard.messages[0].transaction_id == tx.transaction_id
    assert shop.orders() == {2, 3}


async def test_an_async_block_does_the_same(apache: ApacheRocketMQ, shop: Shop, topic: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession

    from escrowmq.client.ledger.table import SqlLedger

    engine = shop.async_engine()
    async with AsyncProducer(
        apache.name_server, fresh("shop"), ledger=SqlLedger(engine)
    ) as producer:
        async with producer.transaction(AsyncSession(engine)) as tx:
            tx.db.add(Order(number=1))
            tx.send(topic, b"1")
        assert tx.state == "committed"
    with hearing(apache, topic) as heard:
        heard.until(b"1")
    assert shop.orders() == {1}


def test_a_transaction_that_was_fenced_off_is_rolled_back(
    apache: ApacheRocketMQ, shop: Shop, topic: str
) -> None:
    """The broker holds the half message when the ledger refuses the row."""
    with (
        Producer(
            apache.name_server, fresh("slow"), ledger=shop.ledger(), max_duration_s=0.001
        ) as producer,
        refused("transaction_fenced"),
        producer.transaction(Session(shop.engine())) as tx,
    ):
        shop.fence(tx.transaction_id)
        tx.db.add(Order(number=1))
        tx.send(topic, b"1")
    with Producer(apache.name_server, fresh("plain")) as plain:
        plain.send(topic, b"end")
    with hearing(apache, topic) as heard:
        assert heard.until(b"end") == [b"end"]
    assert shop.orders() == set()


def test_transactions_of_killed_senders_are_settled_from_the_ledger(
    apache: ApacheRocketMQ, shop: Shop
) -> None:
    apache.create_topic(PAID, queues=1)
    lives = "plain after-COMMIT 1\nplain before-COMMIT 2\nplain after-HOLD 3\n"
    died = subprocess.run(
        [sys.executable, "-m", "tests.ledger.kill_victim", apache.name_server, shop.kind, shop.url],
        input=lives,
        capture_output=True,
        text=True,
        check=True,
        timeout=ARRIVE_S,
    )
    assert died.stdout.split()[1::2] == ["dead"] * 3, died.stderr
    # Until now there was no producer to ask. One live producer with the ledger is enough.
    with (
        Producer(apache.name_server, GROUP, ledger=shop.ledger()) as alive,
        hearing(apache, PAID) as heard,
    ):
        heard.until(b"1")
        eventually(
            lambda: sorted(shop.outcomes().values()) == ["committed", "rolled_back", "rolled_back"],
            "an answer about all three",
        )
        alive.send(PAID, b"end")
        assert set(heard.until(b"end")) == {b"1", b"end"}
        assert alive.clean_ledger() == 0, "the decisions of that broker are unknown"
    assert shop.orders() == {1}


def test_begin_holds_at_once_and_the_caller_decides(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    with failing(), producer.begin() as failed:
        failed.send(topic, b"failed")
        raise OutOfStock
    failed.rollback()
    rolled_back = producer.begin()
    rolled_back.send(topic, b"rolled back")
    decided = rolled_back.rollback()
    assert decided is not None
    assert decided.state == "rolled_back"
    with producer.begin() as transaction:
        transaction.send(topic, b"begun")
    held = producer.send_half(topic, b"half")
    assert producer.end(held, Resolution.COMMIT).state == "committed"
    with hearing(apache, topic) as heard:
        assert heard.until(b"half") == [b"begun", b"half"]


def test_a_listener_that_does_not_know_is_asked_until_it_does(
    apache: ApacheRocketMQ, topic: str
) -> None:
    listener = Listener()
    with (
        Producer(apache.name_server, fresh("listening"), listener=listener) as producer,
        hearing(apache, topic) as heard,
    ):
        at_once = producer.send_in_transaction(
            Message(topic=topic, body=b"at once"), Resolution.COMMIT
        )
        assert at_once.decided is not None
        no = producer.send_in_transaction(Message(topic=topic, body=b"no"))
        yes = producer.send_in_transaction(Message(topic=topic, body=b"yes", key="k", tag="t"))
        assert (no.resolution, no.decided) == (Resolution.UNKNOWN, None)
        heard.until(b"yes")
        eventually(lambda: listener.times_asked(b"no") >= 2, "another question")
        producer.send(topic, b"end")
        # At least once: a broker that asks again is answered again.
        assert set(heard.until(b"end")) == {b"at once", b"yes", b"end"}
    assert listener.times_asked(b"yes") >= 2
    asked = next(one for one in listener.asked if one.body == b"yes")
    assert (asked.topic, asked.key, asked.tag) == (topic, "k", "t")
    assert asked.message_id == yes.message_id


def test_features_that_broker_lacks_are_refused_by_name(
    apache: ApacheRocketMQ, ledgered: Producer, shop: Shop, topic: str
) -> None:
    engine = shop.engine()
    with refused("one_message_per_transaction"), ledgered.transaction(Session(engine)) as tx:
        tx.db.add(Order(number=1))
        tx.send(topic, b"1")
        tx.send(topic, b"2")
    assert tx.state == "rolled_back"
    with refused("delay_in_transaction"), ledgered.transaction(Session(engine)) as tx:
        tx.db.add(Order(number=2))
        tx.send(topic, b"3", delay_ms=1_000)
    begun = ledgered.begin()
    begun.send(topic, b"begun")
    with refused("one_message_per_transaction"):
        begun.send(topic, b"4")
    begun.commit()
    assert shop.orders() == set()
    with hearing(apache, topic) as heard:
        assert heard.until(b"begun") == [b"begun"]


# Consuming.


def test_a_message_whose_handler_fails_comes_again_and_then_is_a_dead_letter(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    group, heard = fresh("failing"), Heard()
    consumer = Consumer(apache.name_server, group)

    @consumer.subscribe(topic)
    def handle(message: Received) -> None:
        heard.hear(message)
        if message.body == b"hopeless":
            raise GiveUp
        if message.retries < 2:
            raise ValueError("not yet")

    producer.send(topic, b"again", key="k")
    producer.send(topic, b"hopeless")
    with consumer:
        heard.wait(lambda bodies: bodies.count(b"again") == 3)
    tries = [one for one in heard.messages if one.body == b"again"]
    assert [one.retries for one in tries] == [0, 1, 2]
    assert {(one.topic, one.message_id, one.key) for one in tries} == {
        (topic, tries[0].message_id, "k")
    }
    assert heard.bodies.count(b"hopeless") == 1
    eventually(
        lambda: b"hopeless" in remoting.pull_all(apache.broker_address, f"%DLQ%{group}"),
        "a dead letter",
    )


def test_an_ordered_consumer_waits_for_a_message_that_fails(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    heard = Heard()
    consumer = Consumer(apache.name_server, fresh("ordered"), ordered=True)

    @consumer.subscribe(topic)
    def handle(message: Received) -> None:
        heard.hear(message)
        if heard.bodies.count(message.body) == 1:
            raise ValueError("not yet")

    producer.send_many([Message(topic=topic, body=body, key="k") for body in (b"1", b"2")])
    with consumer:
        heard.wait(lambda bodies: len(bodies) == 4)
    assert heard.bodies == [b"1", b"1", b"2", b"2"]


def test_only_the_tags_that_were_asked_for_arrive(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    with hearing(apache, topic, tag="red || green") as heard:
        for tag in ("red", "blue", "", "green"):
            producer.send(topic, tag or "none", tag=tag)
        assert heard.until(b"green") == [b"red", b"green"]


def test_a_group_goes_on_where_it_was_and_back_to_a_time(
    apache: ApacheRocketMQ, producer: Producer, topic: str
) -> None:
    group = fresh("seeking")
    producer.send(topic, b"old")
    # Apache's broker acknowledges before its index has the message, and uses its own clock.
    eventually(lambda: bool(stored(apache, topic)), "the first message in its queue")
    (first,) = stored(apache, topic)
    eventually(lambda: time.time() * 1_000 > first.stored_at_ms + 1, "another millisecond")
    producer.send(topic, b"new")
    with Consumer(apache.name_server, group) as consumer:
        found = consumer.messages(topic, timeout_s=ARRIVE_S)
        assert [next(found).body, next(found).body] == [b"old", b"new"]
        producer.send(topic, b"newest")
        assert next(found).body == b"newest"
        found.close()
    with Consumer(apache.name_server, group) as consumer:
        found = consumer.messages(topic, timeout_s=ARRIVE_S)
        # The first loop was closed at this message, so the message comes again.
        assert next(found).body == b"newest"
        producer.send(topic, b"last")
        assert next(found).body == b"last"
        consumer.seek(topic, at_ms=first.stored_at_ms + 1)
        # Apache's broker notifies no client: an open pull learns of the seek when it ends.
        producer.send(topic, b"after")
        bodies = [next(found).body for _ in range(4)]
        assert bodies == [b"new", b"newest", b"last", b"after"]
        found.close()


def stored(apache: ApacheRocketMQ, topic: str) -> list[StoredMessage]:
    return decode_many(remoting.pull_all(apache.broker_address, topic))
