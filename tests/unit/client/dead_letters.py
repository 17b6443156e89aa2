"""A consumer group that gives messages up, for the tests of dead letters."""

from __future__ import annotations

import msgspec

from escrowmq import Producer
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import ListQueuesHeader, ReadMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import SendBackHeader
from escrowmq.protocol.remoting.headers import Header
from escrowmq.testing import InProcessBroker

GROUP, TOPIC = "points", "paid"


def give_up(broker: InProcessBroker, calls: NativeCalls, *bodies: str) -> None:
    """Send messages and let a consumer group reject each one without a retry."""
    with Producer(broker.address, group="senders") as producer:
        for body in bodies:
            producer.send(TOPIC, body.encode(), keys=(f"k-{body}",))
    group = msgspec.json.encode({"groupName": GROUP})
    calls.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Header(), group)
    (read,) = calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(topic=TOPIC))
    asked = ReadMessagesHeader(topic=TOPIC, queue_id=0, start=read.end - len(bodies))
    for row in calls.rows(NativeCode.READ_MESSAGES, asked):
        header = SendBackHeader(log_offset=row.log_offset, consumer_group=GROUP, delay_level=-1)
        calls.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def bodies(broker: InProcessBroker, topic: str) -> list[bytes]:
    return [message.body for message in broker.messages(topic)]
