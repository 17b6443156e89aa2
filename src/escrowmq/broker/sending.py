"""Messages from producers: ordinary ones, batches, and half messages.

What is stored is what the producer sent, and a few properties that RocketMQ's brokers add.  A half
message keeps its real topic and queue: that it is one is a bit in the stored layout.
"""

from __future__ import annotations

import uuid
from itertools import count
from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.broker.topics import DLQ_PREFIX, RETRY_PREFIX
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import Message
from escrowmq.protocol.batch_message import decode_batch
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.ids import offset_message_id
from escrowmq.protocol.properties import (
    CLUSTER,
    MSG_REGION,
    REAL_QID,
    REAL_TOPIC,
    TRACE_ON,
    TRANSACTION_ID,
    UNIQ_KEY,
    format_properties,
)
from escrowmq.protocol.send_headers import SendHeader, SendResponseHeader, read_send_header
from escrowmq.protocol.sent_facts import SentFacts, read_sent_facts
from escrowmq.protocol.stored_message import SYS_TRANSACTION_MASK
from escrowmq.store.meta import MessageType
from escrowmq.transaction.commands import Append, Appended, Decision, Held, Prepare

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.store.meta import Topic

REGION = "DefaultRegion"
_SHARDING_KEY = b"__SHARDINGKEY\x01"


class Sending:
    """Handles SEND_MESSAGE in all its forms."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = count()
        self._added = format_properties(
            {MSG_REGION: REGION, TRACE_ON: "true", CLUSTER: broker.config.cluster}
        )

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def send(self, request: Request) -> None:
        """Store one message, or hold one half message."""
        header = read_send_header(request.frame.code, request.frame.ext)
        if header.is_batch:
            self.send_batch(request)
            return
        now_ms = self._broker.clock.now_ms()
        properties = header.properties.encode()
        facts = read_sent_facts(properties)
        # Clients older than 4.6.1 give a message back with the mark of its transaction on it.
        is_half = facts.is_half and not (header.reconsume_times > 0 and facts.delay_level > 0)
        topic, queue_id = self._place(header, now_ms)
        self._broker.topics.check_type(topic, _type_of(facts, properties, is_half=is_half))
        unique_key = facts.unique_key or _made_up_key()
        if not facts.unique_key:
            properties = _joined(properties, format_properties({UNIQ_KEY: unique_key}))
        if is_half:
            real = {TRANSACTION_ID: unique_key, REAL_TOPIC: topic.name, REAL_QID: str(queue_id)}
            properties = _joined(properties, format_properties(real))
        waits_ms = (
            self._broker.topics.delay_levels.delay_ms(facts.delay_level)
            or facts.deliver_after_ms
            or max(facts.deliver_at_ms - now_ms, 0)
        )
        message = Message(
            topic=topic.name,
            queue_id=queue_id,
            body=request.frame.body,
            properties=_joined(properties, self._added),
            tags=facts.tags,
            keys=facts.keys,
            unique_key=unique_key,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_at_ms=header.born_at_ms,
            born_host=request.connection.born_host,
            reconsume_times=header.reconsume_times,
            deliver_after_ms=waits_ms if is_half else 0,
            deliver_at_ms=now_ms + waits_ms if waits_ms and not is_half else 0,
        )
        if is_half:
            self._broker.submit(
                request,
                Prepare(
                    group=facts.producer_group or header.producer_group,
                    transaction_id=unique_key,
                    messages=(message,),
                    check_after_ms=facts.check_after_ms,
                ),
                lambda decision: self._held(request, decision, queue_id, unique_key),
            )
        else:
            self._broker.submit(
                request,
                Append(messages=(message,)),
                lambda decision: self._stored(request, decision, queue_id),
            )

    def send_batch(self, request: Request) -> None:
        """Store several messages of one topic, in one queue, all or none."""
        header = read_send_header(RequestCode.SEND_BATCH_MESSAGE, request.frame.ext)
        now_ms = self._broker.clock.now_ms()
        if header.sys_flag & SYS_TRANSACTION_MASK or header.topic.startswith(RETRY_PREFIX):
            raise RequestRefused(
                "batch_illegal", "half messages and retries are sent one by one", topic=header.topic
            )
        topic, queue_id = self._place(header, now_ms)
        messages = []
        for flag, body, properties in decode_batch(request.frame.body):
            facts = read_sent_facts(properties)
            unique_key = facts.unique_key or _made_up_key()
            if not facts.unique_key:
                properties = _joined(properties, format_properties({UNIQ_KEY: unique_key}))  # noqa: PLW2901
            messages.append(
                Message(
                    topic=topic.name,
                    queue_id=queue_id,
                    body=body,
                    properties=_joined(properties, self._added),
                    tags=facts.tags,
                    keys=facts.keys,
                    unique_key=unique_key,
                    flag=flag,
                    sys_flag=header.sys_flag,
                    born_at_ms=header.born_at_ms,
                    born_host=request.connection.born_host,
                )
            )
        self._broker.submit(
            request,
            Append(messages=tuple(messages)),
            lambda decision: self._stored(request, decision, queue_id),
        )

    def _place(self, header: SendHeader, now_ms: int) -> tuple[Topic, int]:
        topics = self._broker.topics
        if header.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            topics.for_group(header.topic, now_ms)
        topic = topics.to_send(
            header.topic,
            header.queue_id,
            template=header.default_topic,
            queue_count=header.default_queue_count,
            now_ms=now_ms,
        )
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = next(self._turn) % max(topic.write_queue_count, 1)
        return topic, queue_id

    def _held(self, request: Request, decision: Decision, queue_id: int, unique_key: str) -> None:
        held = decision.reply
        assert isinstance(held, Held)
        header = SendResponseHeader(
            offset_message_id=self._message_id(held.log_offsets[0]),
            queue_id=queue_id,
            queue_offset=held.half_offset,
            transaction_id=unique_key,
            region=REGION,
            is_traced=True,
        )
        request.answer(ResponseCode.SUCCESS, header=header)

    def _stored(self, request: Request, decision: Decision, queue_id: int) -> None:
        stored = decision.reply
        assert isinstance(stored, Appended)
        header = SendResponseHeader(
            offset_message_id=",".join(map(self._message_id, stored.log_offsets)),
            queue_id=queue_id,
            # One that waits for its time has none yet.
            queue_offset=max(stored.queue_offsets[0], 0),
            region=REGION,
            is_traced=True,
        )
        request.answer(ResponseCode.SUCCESS, header=header)

    def _message_id(self, log_offset: int) -> str:
        return offset_message_id(self._broker.store_host, log_offset)


def _type_of(facts: SentFacts, properties: bytes, *, is_half: bool) -> MessageType:
    if is_half:
        return MessageType.TRANSACTION
    if facts.deliver_after_ms or facts.deliver_at_ms:
        return MessageType.DELAY
    return MessageType.FIFO if _SHARDING_KEY in properties else MessageType.NORMAL


def _made_up_key() -> str:
    return uuid.uuid4().hex.upper()


def _joined(properties: bytes, more: bytes) -> bytes:
    """Old clients leave out the last separator."""
    if properties and not properties.endswith(b"\x02"):
        return b"%b\x02%b" % (properties, more)
    return properties + more
