"""Messages from producers: ordinary ones, batches, and half messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.messages import REGION, Sender
from escrowmq.broker.requests import Handlers, Request
from escrowmq.broker.topics import RETRY_PREFIX, dlq_topic
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.batch_message import decode_batch
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.ids import offset_message_id
from escrowmq.protocol.limits import check_name
from escrowmq.protocol.properties import (
    PGROUP,
    POP_CK,
    UNIQ_KEY,
    format_properties,
    parse_properties,
)
from escrowmq.protocol.send_headers import SendHeader, SendResponseHeader, read_send_header
from escrowmq.protocol.sent_facts import read_sent_facts
from escrowmq.protocol.stored_message import SYS_TRANSACTION_MASK
from escrowmq.protocol.templates import SentAnswers
from escrowmq.transaction.commands import Append, Appended, Decision, Held, Prepare

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.store.meta import Topic


class Sending:
    """Handles SEND_MESSAGE in all its forms."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._answers = SentAnswers(broker.store_host, REGION)

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
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
        properties = _without_receipt(header.properties.encode())
        facts = read_sent_facts(properties)
        # Clients older than 4.6.1 send a message back with its transaction property still set.
        is_half = facts.is_half and not (header.reconsume_times > 0 and facts.delay_level > 0)
        group = facts.producer_group or header.producer_group
        if is_half:
            # Checked before the topic is created.
            check_name(UNIQ_KEY, facts.unique_key)
            check_name(PGROUP, group)
        place = self._place(header, now_ms)
        sender = Sender(
            header.flag,
            header.sys_flag,
            header.born_at_ms,
            request.connection.born_host,
            header.reconsume_times,
        )
        message = self._broker.messages.make(
            place, request.frame.body, properties, facts, sender, now_ms=now_ms, is_half=is_half
        )
        queue_id = place[1]
        if is_half:
            unique_key = message.unique_key
            self._broker.submit(
                request,
                Prepare(
                    group=group,
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
        place = self._place(header, now_ms)
        born = (header.sys_flag, header.born_at_ms, request.connection.born_host)
        messages = [
            self._broker.messages.make(
                place,
                body,
                properties,
                read_sent_facts(properties),
                Sender(flag, *born),
                now_ms=now_ms,
                is_half=False,
            )
            for flag, body, properties in decode_batch(request.frame.body)
        ]
        self._broker.submit(
            request,
            Append(messages=tuple(messages)),
            lambda decision: self._stored(request, decision, place[1]),
        )

    def _place(self, header: SendHeader, now_ms: int) -> tuple[Topic, int]:
        if header.topic.startswith(RETRY_PREFIX):
            return self._place_retry(header, now_ms)
        return self._broker.messages.place(
            header.topic,
            header.queue_id,
            now_ms,
            template=header.default_topic,
            queue_count=header.default_queue_count,
        )

    def _place_retry(self, header: SendHeader, now_ms: int) -> tuple[Topic, int]:
        """Return the queue for a retry that a consumer sends if CONSUMER_SEND_MSG_BACK failed."""
        broker = self._broker
        group = broker.groups.made(header.topic.removeprefix(RETRY_PREFIX))
        retries_max = header.max_reconsume_times
        if retries_max is None:
            retries_max = group.retry_max
        # In an ordered group, only messages that the consumer gave up come this way.
        if header.reconsume_times > retries_max or broker.offsets.has_locks(group.name):
            return broker.topics.for_group(dlq_topic(group.name), 1, now_ms), 0
        broker.topics.for_group(header.topic, max(group.retry_queue_count, 1), now_ms)
        return broker.messages.place(header.topic, -1, now_ms)

    def _held(self, request: Request, decision: Decision, queue_id: int, unique_key: str) -> None:
        held = decision.reply
        assert isinstance(held, Held)
        self._tell(request, held.log_offsets[0], queue_id, held.half_offset, unique_key)

    def _stored(self, request: Request, decision: Decision, queue_id: int) -> None:
        stored = decision.reply
        assert isinstance(stored, Appended)
        if len(stored.log_offsets) == 1:
            # A delayed message has no queue offset yet.
            queue_offset = max(stored.queue_offsets[0], 0)
            self._tell(request, stored.log_offsets[0], queue_id, queue_offset)
            return
        header = SendResponseHeader(
            offset_message_id=",".join(map(self._message_id, stored.log_offsets)),
            queue_id=queue_id,
            queue_offset=stored.queue_offsets[0],
            region=REGION,
            is_traced=True,
        )
        request.answer(ResponseCode.SUCCESS, header=header)

    def _tell(
        self,
        request: Request,
        log_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_key: str | None = None,
    ) -> None:
        request.note(ResponseCode.SUCCESS)
        if not request.frame.is_one_way:
            request.connection.send(
                self._answers.encode(request.frame, log_offset, queue_id, queue_offset, unique_key)
            )

    def _message_id(self, log_offset: int) -> str:
        return offset_message_id(self._broker.store_host, log_offset)


def _without_receipt(properties: bytes) -> bytes:
    """Return the properties without ``POP_CK``, which only a broker may set."""
    if POP_CK.encode() not in properties:
        return properties
    pairs = parse_properties(properties)
    pairs.pop(POP_CK, None)
    return format_properties(pairs)
