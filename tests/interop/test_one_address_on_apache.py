"""One address of an Apache RocketMQ broker: the parts that accept it, and those that refuse it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.cli.main import main
from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.producer.producer import Producer
from tests.interop.apache import ApacheRocketMQ
from tests.interop.hearing import ARRIVE_S
from tests.interop.scenario import fresh
from tests.interop.selfcheck import quick_apache

pytestmark = pytest.mark.xdist_group("sdk_on_apache")


@pytest.fixture(scope="module")
def apache() -> Iterator[ApacheRocketMQ]:
    with quick_apache() as broker:
        yield broker


def test_the_address_of_the_broker_alone_is_enough(apache: ApacheRocketMQ) -> None:
    topic = fresh("one")
    apache.create_topic(topic, queues=1)
    with Producer(apache.broker_address, fresh("plain")) as producer:
        producer.send(topic, b"1")
    with Consumer(apache.broker_address, fresh("group")) as consumer:
        found = consumer.messages(topic, timeout_s=ARRIVE_S)
        assert next(found).body == b"1"
        found.close()


@pytest.mark.parametrize("which", ["name_server", "broker_address"])
def test_the_command_line_names_the_kind_of_broker(
    apache: ApacheRocketMQ, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("status", "topic list", "txn list"):
        with pytest.raises(SystemExit) as left:
            main([*words.split(), "--broker", getattr(apache, which)])
        told = capsys.readouterr().err
        assert (left.value.code, "is not EscrowMQ's" in told) == (6, True), told
