"""Checks and listeners of our SDK on an Apache RocketMQ broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from escrowmq.client.messages.messages import Message, Received, SendStatus
from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.message_views import OP_TOPIC
from escrowmq.protocol.message.properties import TRANSACTION_ID
from escrowmq.protocol.message.stored_message import decode_many
from tests.interop import remoting
from tests.interop.apache import ApacheRocketMQ
from tests.interop.hearing import Listener, hearing
from tests.interop.scenario import CHECK_AFTER_MS, eventually, fresh
from tests.interop.selfcheck import quick_apache
from tests.ledger.shops import Order, Shop, sqlite_shop

pytestmark = pytest.mark.xdist_group("sdk_on_apache")


@pytest.fixture(scope="module")
def apache() -> Iterator[ApacheRocketMQ]:
    with quick_apache() as broker:
        yield broker


@pytest.fixture
def topic(apache: ApacheRocketMQ) -> str:
    name = fresh("checks")
    apache.create_topic(name, queues=1)
    return name


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = sqlite_shop(tmp_path)
    yield shop
    shop.close()


class Noting(Listener):
    """Listener that also keeps the property ``__transactionId__``, as each method saw it."""

    def __init__(self) -> None:
        super().__init__()
        self.executed: list[str] = []

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        self.executed.append(message.properties[TRANSACTION_ID])
        if isinstance(arg, Exception):
            raise arg
        return super().execute_local_transaction(message, arg)


def test_a_listener_gets_the_id_of_that_broker_and_the_result_tells_the_place(
    apache: ApacheRocketMQ, topic: str
) -> None:
    listener = Noting()
    with (
        Producer(apache.name_server, fresh("noting"), listener=listener) as producer,
        hearing(apache, topic) as heard,
    ):
        done = producer.send_in_transaction(Message(topic=topic, body=b"yes"))
        heard.until(b"yes")
    (message,) = heard.messages[:1]
    assert listener.executed == [done.message_id] == [message.properties[TRANSACTION_ID]]
    assert {one.properties[TRANSACTION_ID] for one in listener.asked} == {done.message_id}
    assert {one.transaction_id for one in listener.asked} == {done.transaction_id}
    assert (done.topic, done.broker_name, done.queue_id) == (topic, "broker-a", 0)
    assert (done.status, done.resolution) == (SendStatus.SEND_OK, Resolution.UNKNOWN)
    assert done.half_offset >= 0


def test_that_broker_logs_the_error_of_a_local_transaction(
    apache: ApacheRocketMQ, topic: str
) -> None:
    reason = fresh("no-table")
    with Producer(apache.name_server, fresh("failing"), listener=Noting()) as producer:
        message = Message(topic=topic, body=b"no")
        done = producer.send_in_transaction(message, LookupError(reason))
    assert isinstance(done.error, LookupError)
    log = apache.home / "logs" / "rocketmqlogs" / "transaction.log"
    eventually(lambda: f"LookupError: {reason}" in log.read_text(), "the remark in its log")


def test_a_message_moves_its_first_check_there_too(apache: ApacheRocketMQ, topic: str) -> None:
    asked_at_ms: list[float] = []

    def check(_message: Received) -> Resolution:
        asked_at_ms.append(time.time() * 1_000)
        return Resolution.COMMIT

    with (
        Producer(apache.name_server, fresh("patient"), checker=check) as producer,
        hearing(apache, topic) as heard,
    ):
        held_at_ms = time.time() * 1_000
        producer.send_half(topic, b"patient", check_after_s=CHECK_AFTER_MS * 3 // 1_000)
        heard.until(b"patient")
    assert asked_at_ms[0] - held_at_ms >= CHECK_AFTER_MS * 3


def test_a_decision_after_the_time_of_its_message_is_left_to_the_check(
    apache: ApacheRocketMQ, shop: Shop, topic: str
) -> None:
    """That broker refuses it with code 604."""
    with (
        Producer(apache.name_server, fresh("shop"), ledger=shop.ledger()) as producer,
        hearing(apache, topic) as heard,
    ):
        with producer.transaction(Session(shop.engine())) as tx:
            tx.send(topic, b"late", check_after_s=1)
            tx.hold()
            held_at_ms = time.time() * 1_000
            tx.db.add(Order(number=1))
            eventually(lambda: time.time() * 1_000 > held_at_ms + 1_500, "a slow transaction")
        assert tx.state == "committed_untold"
        heard.until(b"late")
    assert shop.orders() == {1}


def test_a_half_message_that_is_not_copied_in_time_is_rolled_back(shop: Shop) -> None:
    """This broker waits in vain for a slave, and answers each message with code 12."""
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "100"}
    settings["transactionOpBatchInterval"] = "100"
    listener = Noting()
    with ApacheRocketMQ(settings=settings) as apache:
        topic = fresh("alone")
        apache.create_topic(topic, queues=1)
        with Producer(apache.name_server, fresh("alone"), listener=listener) as producer:
            with pytest.raises(Unavailable, match="half_not_safe") as caught:
                producer.send_in_transaction(Message(topic=topic, body=b"no"))
            assert caught.value.fields["status"] == SendStatus.FLUSH_SLAVE_TIMEOUT
            assert producer.send(topic, b"end").status is SendStatus.FLUSH_SLAVE_TIMEOUT
        with Producer(apache.name_server, fresh("alone"), ledger=shop.ledger()) as producer:
            with (
                pytest.raises(Unavailable, match="half_not_safe"),
                producer.transaction(Session(shop.engine())) as tx,
            ):
                tx.send(topic, b"1")
            assert tx.state == "rolled_back"

        def ended() -> str:
            found = decode_many(remoting.pull_all(apache.broker_address, OP_TOPIC))
            return "".join(one.body.decode() for one in found)

        eventually(lambda: set(ended().split(",")) == {"0", "1", ""}, "both half messages ended")
        with hearing(apache, topic) as heard:
            assert heard.until(b"end") == [b"end"]
    assert listener.executed == []
