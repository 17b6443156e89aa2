"""Messages from producers: ordinary ones, batches, and half messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.group_requests import GroupRequests
from escrowmq.broker.state.messages import REGION, Messages, Sender, type_of
from escrowmq.broker.state.topics import dlq_topic
from escrowmq.model.catalog import MessageType
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import RETRY_PREFIX
from escrowmq.protocol.message.batch_message import decode_batch
from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.message.limits import check_name, check_plain_name
from escrowmq.protocol.message.properties import (
    PGROUP,
    POP_CK,
    UNIQ_KEY,
    format_properties,
    parse_properties,
)
from escrowmq.protocol.message.sent_facts import read_sent_facts
from escrowmq.protocol.message.stored_message import SYS_TRANSACTION_MASK
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import SendHeader, SendResponseHeader, read_send_header
from escrowmq.transaction.commands import Append, Appended, Decision, HoldReply, Prepare

if TYPE_CHECKING:
    from escrowmq.broker.config import Identity
    from escrowmq.broker.rocketmq.offsets import QueueLocks
    from escrowmq.broker.state.recall_handles import RecallHandles
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.protocol.remoting.templates import SentAnswers
    from escrowmq.store.meta.meta import Topic
    from escrowmq.store.store import Store


@dataclass(frozen=True, slots=True)
class Sending(GroupRequests):
    """Handles SEND_MESSAGE in all its forms."""

    clock: BrokerClock
    messages: Messages
    locks: QueueLocks
    identity: Identity
    answers: SentAnswers
    store: Store
    recalls: RecallHandles

    @handles(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
    def send(self, request: Request) -> None:
        """Store one message, or hold one half message."""
        header = read_send_header(request.frame.code, request.frame.ext)
        if header.is_batch:
            self.send_batch(request)
            return
        now_ms = self.clock.now_ms()
        properties = _without_receipt(header.properties.encode())
        facts = read_sent_facts(properties)
        # Clients older than 4.6.1 send a message back with its transaction property still set.
        is_half = facts.is_half and not (header.reconsume_times > 0 and facts.delay_level > 0)
        group = facts.producer_group or header.producer_group
        if is_half:
            # Checked before the topic is created.
            check_name(UNIQ_KEY, facts.unique_key)
            check_plain_name(PGROUP, group)
        sent = type_of(facts, properties, is_half=is_half)
        place = self._place(header, now_ms, sent)
        sender = Sender(
            header.flag,
            header.sys_flag,
            header.born_at_ms,
            request.connection.born_host,
            header.reconsume_times,
        )
        message = self.messages.make(
            place, request.frame.body, properties, facts, sender, now_ms=now_ms, is_half=is_half
        )
        queue_id = place[1]
        if is_half:
            unique_key = message.unique_key
            self.answering.submit(
                request,
                Prepare(
                    group=group,
                    transaction_id=unique_key,
                    messages=(message,),
                    user=request.user,
                    check_after_ms=facts.check_after_ms,
                ),
                partial(self._held, request, queue_id, unique_key),
            )
        else:
            self.answering.submit(
                request,
                Append(messages=(message,)),
                partial(self._stored, request, queue_id),
            )

    @handles(RequestCode.SEND_BATCH_MESSAGE)
    def send_batch(self, request: Request) -> None:
        """Store several messages of one topic, in one queue, all or none."""
        header = read_send_header(RequestCode.SEND_BATCH_MESSAGE, request.frame.ext)
        now_ms = self.clock.now_ms()
        if header.sys_flag & SYS_TRANSACTION_MASK or header.topic.startswith(RETRY_PREFIX):
            raise RequestRefused(
                "batch_illegal", "half messages and retries are sent one by one", topic=header.topic
            )
        place = self._place(header, now_ms, MessageType.NORMAL)
        born = (header.sys_flag, header.born_at_ms, request.connection.born_host)
        messages = [
            self.messages.make(
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
        self.answering.submit(
            request,
            Append(messages=tuple(messages)),
            partial(self._stored, request, place[1]),
        )

    def _place(self, header: SendHeader, now_ms: int, sent: MessageType) -> tuple[Topic, int]:
        if header.topic.startswith(RETRY_PREFIX):
            return self._place_retry(header, now_ms)
        return self.messages.place(
            header.topic,
            header.queue_id,
            now_ms,
            template=header.default_topic,
            queue_count=header.default_queue_count,
            message_type=self.topics.type_from_first(sent),
        )

    def _place_retry(self, header: SendHeader, now_ms: int) -> tuple[Topic, int]:
        """Return the queue for a retry that a consumer sends if CONSUMER_SEND_MSG_BACK failed."""
        group = self.groups.made(header.topic.removeprefix(RETRY_PREFIX))
        retries_max = header.max_reconsume_times
        if retries_max is None:
            retries_max = group.retry_max
        # In an ordered group, only messages that the consumer gave up come this way.
        if header.reconsume_times > retries_max or self.locks.has_any(group.name):
            return self.topics.for_group(dlq_topic(group.name), 1, now_ms), 0
        self.topics.for_group(header.topic, max(group.retry_queue_count, 1), now_ms)
        return self.messages.place(header.topic, -1, now_ms)

    def _held(self, request: Request, queue_id: int, unique_key: str, decision: Decision) -> None:
        held = decision.reply
        assert isinstance(held, HoldReply)
        self._tell(request, held.log_offsets[0], queue_id, held.half_offset, unique_key)

    def _stored(self, request: Request, queue_id: int, decision: Decision) -> None:
        stored = decision.reply
        assert isinstance(stored, Appended)
        handle = None
        if stored.queue_offsets[0] < 0:
            handle = self.recalls.of_stored(decision, self.store.core.lineage.epoch)
        elif len(stored.log_offsets) == 1:
            self._tell(request, stored.log_offsets[0], queue_id, stored.queue_offsets[0])
            return
        header = SendResponseHeader(
            offset_message_id=",".join(
                offset_message_id(self.identity.store_host, at) for at in stored.log_offsets
            ),
            queue_id=queue_id,
            # A delayed message has no queue offset yet.
            queue_offset=max(stored.queue_offsets[0], 0),
            recall_handle=handle,
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
                self.answers.encode(request.frame, log_offset, queue_id, queue_offset, unique_key)
            )


def _without_receipt(properties: bytes) -> bytes:
    """Return the properties without ``POP_CK``, which only a broker may set."""
    if POP_CK.encode() not in properties:
        return properties
    pairs = parse_properties(properties)
    pairs.pop(POP_CK, None)
    return format_properties(pairs)
