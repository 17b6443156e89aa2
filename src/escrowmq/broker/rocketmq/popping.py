"""Pop requests of RocketMQ's remoting clients, which ``broker/pop`` answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.pop.receipts import AckOutcome, Receipt, Receive, ReceivedBatch, ReceiveStatus
from escrowmq.broker.rocketmq.pulling import check_expression_type
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import RETRY_PREFIX
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.remoting import pop_headers
from escrowmq.protocol.remoting.bodies import read_body
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import ConsumedQueueHeader

if TYPE_CHECKING:
    from escrowmq.broker.pop.service import PopService

_CODES = {
    ReceiveStatus.FOUND: ResponseCode.SUCCESS,
    ReceiveStatus.EMPTY: ResponseCode.POLLING_TIMEOUT,
    ReceiveStatus.FULL: ResponseCode.POLLING_FULL,
}


@dataclass(frozen=True, slots=True)
class PopRequests:
    """Handles pops, acknowledgements, and changes of the invisible time."""

    service: PopService

    @handles(RequestCode.POP_MESSAGE)
    def pop(self, request: Request) -> None:
        """Answer with messages, at once or after a long poll."""
        header = request.header(pop_headers.PopHeader)
        check_expression_type(header.expression_type)
        if header.topic.startswith(RETRY_PREFIX):
            # A client cannot build a receipt for such a message.
            raise RequestRefused("pop_of_retries", "pull this topic", topic=header.topic)
        wanted = _wanted(header)
        self._receive(request, wanted, partial(_answer, request, wanted))

    def _receive(
        self, request: Request, wanted: Receive, answer: Callable[[ReceivedBatch], None]
    ) -> None:
        def tell(end: ReceivedBatch | BaseException) -> None:
            if isinstance(end, ReceivedBatch):
                answer(end)
            else:
                request.decline(end)

        request.has_waited = wanted.wait_ms > 0
        self.service.receive(wanted, tell, request.connection)

    @handles(RequestCode.ACK_MESSAGE)
    def acknowledge(self, request: Request) -> None:
        """Acknowledge one message; the answer leaves once that is durable."""
        header = request.header(pop_headers.AckHeader)
        self._acknowledge(request, header.consumer_group, [_receipt(header)])

    @handles(RequestCode.BATCH_ACK_MESSAGE)
    def acknowledge_all(self, request: Request) -> None:
        """Acknowledge messages of several pops of one group."""
        acks = read_body(pop_headers.BatchAcks, request.frame.body).acks
        groups = {ack.group for ack in acks}
        if len(groups) != 1 or sum(len(ack.bits) for ack in acks) * 8 > pop_headers.BATCH_ACKS_MAX:
            raise RequestRefused(
                "pop_count_illegal",
                f"acknowledge up to {pop_headers.BATCH_ACKS_MAX} messages of one group",
                groups=len(groups),
            )
        receipts = [
            Receipt(ack.group, ack.topic, ack.queue_id, offset, ack.popped_at_ms)
            for ack in acks
            for offset in ack.offsets
        ]
        self._acknowledge(request, groups.pop(), receipts)

    def _acknowledge(self, request: Request, group: str, receipts: list[Receipt]) -> None:
        def tell(end: list[AckOutcome] | BaseException) -> None:
            request.connection.answered()
            if isinstance(end, BaseException):
                request.decline(end)
            elif AckOutcome.STALE in end:
                stale = end.count(AckOutcome.STALE)
                request.decline(
                    RequestRefused(
                        "receipt_stale",
                        "the message was delivered again, or the broker restarted",
                        stale=stale,
                        acknowledged=len(end) - stale,
                    )
                )
            else:
                request.answer()

        request.connection.owe()
        try:
            self.service.acknowledge(group, receipts, tell, request.connection)
        except BaseException:
            request.connection.answered()
            raise

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change_invisible(self, request: Request) -> None:
        """Set when a message in flight is visible again, and answer with its new receipt."""
        header = request.header(pop_headers.ChangeInvisibleHeader)
        read = pop_headers.read_receipt_text(header.receipt)
        receipt = self.service.change_invisible(_receipt(header), header.invisible_ms)
        request.answer(
            header=pop_headers.InvisibleResponseHeader(
                popped_at_ms=receipt.popped_at_ms,
                invisible_ms=header.invisible_ms,
                revive_queue=_revive_queue(is_ordered=read.is_ordered),
            )
        )

    @handles(RequestCode.NOTIFICATION)
    def notify(self, request: Request) -> None:
        """Answer whether there is a message to pop, at once or when the first one comes."""
        header = request.header(pop_headers.NotificationHeader)
        wanted = Receive(
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            invisible_ms=0,
            wait_ms=header.wait_ms,
            is_fifo=header.is_ordered,
            attempt_id=header.attempt_id,
            is_question=True,
        )

        def answer(received: ReceivedBatch) -> None:
            is_there = received.status is ReceiveStatus.FOUND
            is_full = received.status is ReceiveStatus.FULL
            request.answer(
                header=pop_headers.NotificationResponseHeader(is_there=is_there, is_full=is_full)
            )

        self._receive(request, wanted, answer)

    @handles(RequestCode.POLLING_INFO)
    def polling_info(self, request: Request) -> None:
        """Answer how many pops of a group wait for a queue."""
        header = request.header(ConsumedQueueHeader)
        waiting = sum(
            poll.wanted.group == header.consumer_group
            and poll.wanted.topic == header.topic
            and header.queue_id in (-1, poll.wanted.queue_id)
            for poll in self.service.polls
        )
        request.answer(header=pop_headers.PollingInfoResponseHeader(waiting=waiting))


def _wanted(header: pop_headers.PopHeader) -> Receive:
    tags, group = parse_filter(header.expression), header.consumer_group
    wanted = Receive(group=group, topic=header.topic, tags=tags, invisible_ms=header.invisible_ms)
    is_at_end = header.init_mode == pop_headers.AT_END
    wanted = replace(wanted, queue_id=header.queue_id, count_max=header.messages_max)
    wanted = replace(wanted, is_fifo=header.is_ordered, attempt_id=header.attempt_id)
    return replace(wanted, wait_ms=header.wait_ms, starts_at_end=is_at_end)


def _receipt(header: pop_headers.AckHeader) -> Receipt:
    popped_at_ms = pop_headers.read_receipt_text(header.receipt).popped_at_ms
    return Receipt(
        header.consumer_group, header.topic, header.queue_id, header.offset, popped_at_ms
    )


def _revive_queue(*, is_ordered: bool) -> int:
    return pop_headers.ORDER_REVIVE_QUEUE if is_ordered else pop_headers.REVIVE_QUEUE


def _answer(request: Request, wanted: Receive, received: ReceivedBatch) -> None:
    offsets: dict[int, list[int]] = {}
    for message in received.messages:
        offsets.setdefault(message.receipt.queue_id, []).append(message.receipt.offset)
    again = [one.receipt for one in received.messages if one.receipt.attempt > 1]
    retries = None
    if wanted.is_fifo and again:
        counts = ((one.queue_id, one.offset, one.attempt - 1) for one in again)
        retries = pop_headers.retries_text(counts)
    header = pop_headers.PopResponseHeader(
        popped_at_ms=received.popped_at_ms,
        invisible_ms=max(wanted.invisible_ms, 1),
        revive_queue=_revive_queue(is_ordered=wanted.is_fifo),
        rest=received.rest,
        start_offsets=pop_headers.start_offsets_text(offsets) if offsets else None,
        offsets=pop_headers.offsets_text(offsets) if offsets else None,
        retries=retries,
    )
    request.answer(
        _CODES[received.status],
        header=header,
        remark=received.status.value,
        body=b"".join(message.record for message in received.messages),
    )
