"""SendMessage: ordinary, ordered and delayed messages, and half messages.

Each message of a request is stored by itself and has its own status. The producer group of a half
message is its topic, as in RocketMQ's proxy. Message types are always enforced here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.broker.grpc.codes import common_status, ok, status_of
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.broker.grpc.sent_messages import ReadMessage, read_message
from escrowmq.broker.net.answering import reply_of
from escrowmq.broker.state.messages import Messages, Sender
from escrowmq.broker.state.topics import require_type
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc.messages import (
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from escrowmq.protocol.grpc.resource_names import name_of
from escrowmq.protocol.message.limits import validate_topic
from escrowmq.transaction.commands import Append, Appended, Decision, HoldReply, Prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.broker.grpc.telemetry import GrpcTelemetry
    from escrowmq.broker.grpc.transaction_ids import TransactionIds
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.state.recall_handles import RecallHandles
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.bulk import Ends
    from escrowmq.protocol.grpc.messages import Message
    from escrowmq.store.store import Store

MESSAGES_MAX = 1_024
"""Messages of one request."""
DELAY_MS_MAX = 24 * 3_600_000
"""The longest delay of a message, as in RocketMQ's proxy."""

Command = Append | Prepare

#: An answer about one stored message; to read it takes less time than to make its parts.
_STORED = SendMessageResponse(
    status=ok(), entries=(SendResultEntry(status=ok()),)
).SerializeToString()


@dataclass(frozen=True, slots=True)
class GrpcSending:
    """Handles SendMessage."""

    answering: Answering
    store: Store
    clock: BrokerClock
    messages: Messages
    telemetry: GrpcTelemetry
    ids: TransactionIds
    recalls: RecallHandles

    @serves("SendMessage")
    def send(self, request: GrpcRequest, sent: SendMessageRequest) -> None:
        """Store messages of one topic, and hold half messages."""
        messages = sent.messages
        if not 1 <= len(messages) <= MESSAGES_MAX:
            raise RequestRefused(
                "no_messages" if not messages else "too_many_messages",
                f"send 1 to {MESSAGES_MAX} messages in one request",
                count=len(messages),
            )
        first = messages[0]
        topic = name_of(first.topic)
        if self.messages.topics.get(topic) is None:
            # The name of a known topic was validated when it was created.
            validate_topic(topic)
        if len(messages) == 1:
            command = self._command(request, topic, first)
            self.answering.submit(request, command, partial(self._tell, request, topic, command))
            return
        if any(name_of(message.topic) != topic for message in messages):
            raise RequestRefused("batch_illegal", "all messages must have one topic", topic=topic)
        commands = [self._command_or_refusal(request, topic, message) for message in messages]
        good = [one for one in commands if not isinstance(one, RequestRefused)]
        if not good:
            self._tell_many(request, topic, commands, [])
            return
        told = partial(self._tell_many, request, topic, commands)
        self.answering.submit_all(request, good, told)

    def _command_or_refusal(
        self, request: GrpcRequest, topic: str, message: Message
    ) -> Command | RequestRefused:
        try:
            return self._command(request, topic, message)
        except RequestRefused as refused:
            return refused

    def _command(self, request: GrpcRequest, topic: str, message: Message) -> Command:
        """Return the command that stores a message; raise ``CreateFirst`` for a new topic."""
        read = read_message(message, topic)
        now_ms = self.clock.now_ms()
        # A client with other queues than the topic's has an old route; any queue will do.
        queue_id, turn = message.system_properties.queue_id, None
        known = self.messages.topics.get(topic)
        if read.message_group:
            # All clients must agree on the queue of a message group, so the broker chooses it.
            queue_id, turn = -1, crc32(read.message_group.encode())
        elif known is None or not 0 <= queue_id < known.write_queue_count:
            queue_id = -1
        place = self.messages.place(topic, queue_id, now_ms, turn=turn, message_type=read.type)
        if not place[0].write_queue_count:
            raise RequestRefused(
                "topic_not_writable", "the topic has no queue for new messages", topic=topic
            )
        require_type(place[0], read.type)
        born_at_ms = read.born_at_ms if read.born_at_ms > 0 else now_ms
        if read.facts.deliver_at_ms:
            self._check_delay(read, born_at_ms)
        made = self.messages.make(
            place,
            read.body,
            read.properties,
            read.facts,
            Sender(0, 0, born_at_ms, request.born_host),
            now_ms=now_ms,
            is_half=read.facts.is_half,
        )
        if not read.facts.is_half:
            return Append(messages=(made,))
        return Prepare(
            group=topic,
            transaction_id=made.unique_key,
            messages=(made,),
            user=request.user,
            check_after_ms=read.facts.check_after_ms,
        )

    def _check_delay(self, read: ReadMessage, born_at_ms: int) -> None:
        waits_ms = self.messages.waits_ms(read.facts, born_at_ms)
        if waits_ms > DELAY_MS_MAX:
            raise RequestRefused(
                "delay_illegal",
                f"a message can wait for at most {DELAY_MS_MAX} ms",
                deliver_at_ms=read.facts.deliver_at_ms,
            )

    # Answers.

    def _tell(self, request: GrpcRequest, topic: str, command: Command, decision: Decision) -> None:
        response = SendMessageResponse.FromString(_STORED)
        self._fill(response.entries[0], request, topic, command, decision)
        request.answer(response)

    def _tell_many(
        self,
        request: GrpcRequest,
        topic: str,
        commands: Sequence[Command | RequestRefused],
        ends: Ends,
    ) -> None:
        left = iter(ends)
        entries = []
        for command in commands:
            end = command if isinstance(command, RequestRefused) else next(left)
            if isinstance(end, Decision) and end.refused is not None:
                end = end.refused
            if isinstance(end, Decision):
                assert not isinstance(command, RequestRefused)
                entry = SendResultEntry(status=ok())
                self._fill(entry, request, topic, command, end)
                entries.append(entry)
            else:
                entries.append(SendResultEntry(status=status_of(end)))
        status = common_status([entry.status for entry in entries])
        request.answer(SendMessageResponse(status=status, entries=entries), status.code)

    def _fill(
        self,
        entry: SendResultEntry,
        request: GrpcRequest,
        topic: str,
        command: Command,
        decision: Decision,
    ) -> None:
        """Write where a message is into its part of the answer."""
        entry.message_id = command.messages[0].unique_key
        epoch = self.store.core.lineage.epoch
        if isinstance(command, Append):
            stored = reply_of(decision, Appended)
            # A delayed message has no queue offset yet.
            entry.offset = max(stored.queue_offsets[0], 0)
            entry.recall_handle = self.recalls.of_stored(decision, epoch) or ""
            return
        held = reply_of(decision, HoldReply)
        # A client that did not declare the topic would not be asked about its transaction.
        self.telemetry.note_producer(request.client_id, topic)
        entry.transaction_id = self.ids.make(epoch, held.half_offset, held.log_offsets[0])
        entry.offset = held.half_offset
