"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

``broker/pop/`` does the work. This module translates the messages of RocketMQ's gRPC protocol and
checks their limits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.codes import OK, common_status, ok, status_of
from escrowmq.broker.grpc.names import group_of, ms_of, set_time, timestamp, topic_of
from escrowmq.broker.grpc.renewing import HELD_MS_MAX, INVISIBLE_MS, Renewals
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.broker.grpc.settings import POLLING_MS, RECEIVED_MAX, expression_of
from escrowmq.broker.grpc.streaming import stream
from escrowmq.broker.grpc.told_messages import tell_message
from escrowmq.broker.pop.receipts import (
    AckOutcome,
    PoppedMessage,
    Receipt,
    Receive,
    ReceivedBatch,
    ReceiveStatus,
    read_receipt,
)
from escrowmq.broker.state.long_polls import WAIT_MS_MAX
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.message.limits import NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.grpc.telemetry import GrpcTelemetry
    from escrowmq.broker.pop.service import PopService

INVISIBLE_MS_MIN = 10_000
INVISIBLE_MS_MAX = 12 * 3_600_000
"""Limits of the invisible time that a consumer sets itself, as in RocketMQ's proxy."""
ANSWER_MS = 500
"""How long before the deadline of a call its long poll ends, so that the answer arrives."""
ENTRIES_MAX = 1_024
"""Acknowledgements in one request."""

#: An answer about one message. Encoded once, because decoding it is faster than building it.
_ACKNOWLEDGED = grpc.AckMessageResponse(
    status=ok(), entries=[grpc.AckMessageResultEntry(status=ok())]
).SerializeToString()

_CODES = {
    ReceiveStatus.FOUND: GrpcCode.OK,
    ReceiveStatus.EMPTY: GrpcCode.MESSAGE_NOT_FOUND,
    ReceiveStatus.FULL: GrpcCode.TOO_MANY_REQUESTS,
}


@dataclass(frozen=True, slots=True)
class GrpcReceiving:
    """Handles the requests of consumers whose messages the broker keeps in flight."""

    popping: PopService
    telemetry: GrpcTelemetry
    renewals: Renewals

    @serves("ReceiveMessage")
    def receive(self, request: GrpcRequest, asked: grpc.ReceiveMessageRequest) -> None:
        """Deliver messages now, or as soon as there are some.

        Messages come from any queue, as from RocketMQ's proxy: clients name the queues of a topic
        in turn, and would wait at one while another has messages.
        """
        is_held = asked.auto_renew and request.client_id in self.telemetry.sessions
        invisible_ms = HELD_MS_MAX if is_held else _invisible_ms(asked)
        if asked.batch_size < 1:
            raise RequestRefused(
                "pop_count_illegal", f"ask for 1 to {RECEIVED_MAX} messages", count=asked.batch_size
            )
        topic = topic_of(asked.message_queue.topic)
        wanted = Receive(
            group=group_of(asked.group),
            topic=topic,
            tags=parse_filter(expression_of(asked.filter_expression)),
            count_max=min(asked.batch_size, RECEIVED_MAX),
            invisible_ms=invisible_ms,
            wait_ms=_wait_ms(request, asked),
            attempt_id=asked.attempt_id[:NAME_CHARS_MAX],
            starts_at_end=True,
        )
        request.closed = partial(self._closed, request)
        told = partial(self._received, request, wanted, is_held=is_held)
        self.popping.receive(wanted, told, request)
        if request.closed is not None:
            self.telemetry.waiting.add(request)

    def _closed(self, request: GrpcRequest) -> None:
        """Stop waiting: the client has gone."""
        self.telemetry.waiting.drop(request)
        self.popping.polls.drop(request)

    def _received(
        self,
        request: GrpcRequest,
        wanted: Receive,
        received: ReceivedBatch | BaseException,
        *,
        is_held: bool,
    ) -> None:
        self.telemetry.waiting.drop(request)
        if isinstance(received, BaseException):
            request.decline(received)
            return
        code = _CODES[received.status]
        request.note(code)
        told_ms = INVISIBLE_MS if is_held else wanted.invisible_ms
        holder = request.client_id if is_held else ""
        stream(request.call, self._encoded(code, received, told_ms, holder))

    def _encoded(
        self, code: GrpcCode, received: ReceivedBatch, invisible_ms: int, holder: str
    ) -> Iterator[bytes]:
        """Yield the parts of an answer, in the order in which clients expect them."""
        status = grpc.Status(code=code, message=code.name)
        yield grpc.ReceiveMessageResponse(status=status).SerializeToString()
        receipts = deque(popped.receipt for popped in received.messages)
        try:
            for popped in received.messages:
                if holder:
                    self._hold(holder, popped.receipt)
                yield _told(popped, invisible_ms)
                receipts.popleft()
            at = timestamp(self.popping.clock.now_ms())
            yield grpc.ReceiveMessageResponse(delivery_timestamp=at).SerializeToString()
        finally:
            # If the call ended early, other clients may have the messages that were not sent.
            for receipt in receipts:
                self._release(holder, receipt)

    def _hold(self, client_id: str, receipt: Receipt) -> None:
        # An admin may have reset the group's offsets meanwhile.
        with suppress(RequestRefused):
            if client_id in self.telemetry.sessions:
                self.popping.hold_back(receipt, HELD_MS_MAX)
                self.renewals.hold(client_id, receipt)
            else:
                self.renewals.hold_shortly(receipt)

    def _release(self, holder: str, receipt: Receipt) -> None:
        self.renewals.drop(holder, receipt)
        # Refused if the client acknowledged the message before it left.
        with suppress(RequestRefused):
            self.popping.change_invisible(receipt, 0)

    @serves("AckMessage")
    def acknowledge(self, request: GrpcRequest, asked: grpc.AckMessageRequest) -> None:
        """Acknowledge messages, each with its own outcome."""
        group, topic = group_of(asked.group), topic_of(asked.topic)
        entries = list(asked.entries)
        if not 1 <= len(entries) <= ENTRIES_MAX:
            raise RequestRefused(
                "pop_count_illegal", f"acknowledge 1 to {ENTRIES_MAX} messages", count=len(entries)
            )
        receipts = [_receipt_or_refusal(group, topic, entry.receipt_handle) for entry in entries]
        good = [one for one in receipts if isinstance(one, Receipt)]

        def told(outcomes: list[AckOutcome] | BaseException) -> None:
            if isinstance(outcomes, BaseException):
                request.decline(outcomes)
                return
            for receipt in good:
                self.renewals.drop(request.client_id, receipt)
            left = iter(outcomes)
            statuses = [
                _status(next(left)) if isinstance(one, Receipt) else status_of(one)
                for one in receipts
            ]
            _tell_acks(request, entries, statuses)

        self.popping.acknowledge(group, good, told, request.source)

    @serves("ChangeInvisibleDuration")
    def change(self, request: GrpcRequest, asked: grpc.ChangeInvisibleDurationRequest) -> None:
        """Set how long a message stays invisible from now on."""
        invisible_ms = ms_of(asked.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise _illegal(invisible_ms, 0)
        old = read_receipt(group_of(asked.group), topic_of(asked.topic), asked.receipt_handle)
        receipt = self.popping.change_invisible(old, invisible_ms)
        self.renewals.drop(request.client_id, old)
        request.answer(
            grpc.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=receipt.text())
        )

    @serves("ForwardMessageToDeadLetterQueue")
    def dead_letter(
        self, request: GrpcRequest, asked: grpc.ForwardMessageToDeadLetterQueueRequest
    ) -> None:
        """Make a message a dead letter, because its consumer gave it up."""
        receipt = read_receipt(group_of(asked.group), topic_of(asked.topic), asked.receipt_handle)

        def told(error: BaseException | None) -> None:
            if error is not None:
                request.decline(error)
                return
            self.renewals.drop(request.client_id, receipt)
            request.answer(grpc.ForwardMessageToDeadLetterQueueResponse(status=ok()))

        self.popping.dead_letter(receipt, told, request.source)


def _invisible_ms(asked: grpc.ReceiveMessageRequest) -> int:
    """Return how long received messages stay invisible."""
    if asked.auto_renew:
        return INVISIBLE_MS
    invisible_ms = ms_of(asked.invisible_duration)
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise _illegal(invisible_ms, INVISIBLE_MS_MIN)
    return invisible_ms


def _illegal(invisible_ms: int, least_ms: int) -> RequestRefused:
    return RequestRefused(
        "invisible_time_illegal",
        f"must be from {least_ms} to {INVISIBLE_MS_MAX} ms",
        invisible_ms=invisible_ms,
    )


def _wait_ms(request: GrpcRequest, asked: grpc.ReceiveMessageRequest) -> int:
    """Return how long a request may wait, which ends before its deadline."""
    wait_ms = POLLING_MS
    if asked.HasField("long_polling_timeout"):
        wait_ms = ms_of(asked.long_polling_timeout)
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise RequestRefused(
                "polling_time_illegal", f"wait for 0 to {WAIT_MS_MAX} ms", wait_ms=wait_ms
            )
    deadline = request.call.deadline
    if deadline is not None:
        left_ms = int((deadline - asyncio.get_running_loop().time()) * 1_000) - ANSWER_MS
        wait_ms = max(min(wait_ms, left_ms), 0)
    return wait_ms


def _told(popped: PoppedMessage, invisible_ms: int) -> bytes:
    response = grpc.ReceiveMessageResponse()
    message = response.message
    tell_message(message, popped.record)
    system = message.system_properties
    system.receipt_handle = popped.receipt.text()
    system.delivery_attempt = popped.receipt.attempt
    set_time(system.invisible_duration, invisible_ms)
    return response.SerializeToString()


def _receipt_or_refusal(group: str, topic: str, handle: str) -> Receipt | RequestRefused:
    try:
        return read_receipt(group, topic, handle)
    except RequestRefused as refused:
        return refused


def _status(outcome: AckOutcome) -> grpc.Status:
    if outcome is AckOutcome.ACKNOWLEDGED:
        return ok()
    return grpc.Status(
        code=GrpcCode.INVALID_RECEIPT_HANDLE,
        message="the message was delivered again later, or the broker restarted",
    )


def _tell_acks(
    request: GrpcRequest, entries: list[grpc.AckMessageEntry], statuses: list[grpc.Status]
) -> None:
    if len(entries) == 1 and statuses[0].code == OK:
        response = grpc.AckMessageResponse.FromString(_ACKNOWLEDGED)
        (result,) = response.entries
        result.message_id = entries[0].message_id
        result.receipt_handle = entries[0].receipt_handle
        request.answer(response)
        return
    results = [
        grpc.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )
        for entry, status in zip(entries, statuses, strict=True)
    ]
    status = common_status(statuses)
    request.answer(grpc.AckMessageResponse(status=status, entries=results), status.code)
