"""Headers and bodies of pop consumers' requests, and the texts in them.

A client builds the receipt of a message itself: from the time of the pop, its invisible time, and
the offsets that the answer lists for each queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from msgspec import field

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import Expression, Name
from escrowmq.protocol.remoting.bodies import JsonBody, QueueName
from escrowmq.protocol.remoting.consumer_headers import EXPRESSION_TAG, ConsumedQueueHeader
from escrowmq.protocol.remoting.headers import Header, Int32, Int64

AT_END = 1
"""``init_mode`` of a group that starts at the end of a queue."""

REVIVE_QUEUE = 0
ORDER_REVIVE_QUEUE = 999
"""Numbers that clients return unchanged; 999 means that messages were delivered in order."""

_NORMAL = "0"
BATCH_ACKS_MAX = 4_096
"""Messages that one BATCH_ACK_MESSAGE can acknowledge."""


class PopHeader(ConsumedQueueHeader, frozen=True, kw_only=True):
    """POP_MESSAGE."""

    messages_max: Int32 = field(name="maxMsgNums")
    invisible_ms: Int64 = field(name="invisibleTime")
    wait_ms: Int64 = field(name="pollTime")
    born_at_ms: Int64 = field(name="bornTime", default=0)
    init_mode: Int32 = 0
    expression_type: Name = field(name="expType", default=EXPRESSION_TAG)
    expression: Expression = field(name="exp", default="")
    is_ordered: bool = field(name="order", default=False)
    attempt_id: Name = ""


class NotificationHeader(ConsumedQueueHeader, frozen=True, kw_only=True):
    """NOTIFICATION, which asks whether there is a message to pop."""

    wait_ms: Int64 = field(name="pollTime")
    born_at_ms: Int64 = field(name="bornTime", default=0)
    is_ordered: bool = field(name="order", default=False)
    attempt_id: Name = ""


class NotificationResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to NOTIFICATION. If too many requests wait, it comes at once."""

    is_there: bool = field(name="hasMsg")
    is_full: bool = field(name="pollingFull", default=False)


class InvisibleResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to CHANGE_MESSAGE_INVISIBLETIME: the facts of the new receipt."""

    popped_at_ms: Int64 = field(name="popTime", default=0)
    invisible_ms: Int64 = field(name="invisibleTime", default=0)
    revive_queue: Int32 = field(name="reviveQid", default=REVIVE_QUEUE)


class PopResponseHeader(InvisibleResponseHeader, frozen=True, kw_only=True):
    """The answer to POP_MESSAGE. The messages are in the body."""

    rest: Int64 = field(name="restNum", default=0)
    start_offsets: str | None = field(name="startOffsetInfo", default=None)
    offsets: str | None = field(name="msgOffsetInfo", default=None)
    retries: str | None = field(name="orderCountInfo", default=None)


class AckHeader(ConsumedQueueHeader, frozen=True, kw_only=True):
    """ACK_MESSAGE."""

    receipt: Expression = field(name="extraInfo")
    offset: Int64


class ChangeInvisibleHeader(AckHeader, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    invisible_ms: Int64 = field(name="invisibleTime")


class PollingInfoResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to POLLING_INFO: pops that wait."""

    waiting: Int32 = field(name="pollingNum")


_BATCH_NAMES = {"group": "c", "topic": "t", "queue_id": "q", "start_offset": "so"}


class BatchAck(JsonBody, frozen=True, kw_only=True, rename=_BATCH_NAMES):
    """Acknowledgements of one pop in one queue."""

    group: Name
    topic: Name
    queue_id: Int32
    #: Bit n of ``bits``, little-endian, stands for the message at ``start_offset + n``.
    start_offset: Int64
    bits: bytes = field(name="b")
    popped_at_ms: Int64 = field(name="pt")

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages."""
        bits = int.from_bytes(self.bits, "little")
        return [self.start_offset + at for at in range(bits.bit_length()) if bits >> at & 1]


class BatchAcks(JsonBody, frozen=True, kw_only=True):
    """BATCH_ACK_MESSAGE."""

    acks: tuple[BatchAck, ...] = ()


RequestMode = Literal["PULL", "POP"]


class RequestModeBody(JsonBody, frozen=True, kw_only=True):
    """SET_MESSAGE_REQUEST_MODE: how the members of a group get a topic's messages."""

    topic: Name
    consumer_group: Name
    mode: RequestMode = "PULL"
    #: A member pops the queues of this many other members as well; 0 means all queues.
    share_queue_count: Int32 = field(name="popShareQueueNum", default=0)


class AssignmentRequest(JsonBody, frozen=True, kw_only=True):
    """QUERY_ASSIGNMENT: asks which queues a client should read."""

    topic: Name
    consumer_group: Name
    client_id: Name
    strategy: Name = field(name="strategyName", default="AVG")
    message_model: Name = "CLUSTERING"


class Assignment(JsonBody, frozen=True, kw_only=True):
    """A queue that a client should read; the id -1 stands for all queues of the topic."""

    queue: QueueName = field(name="messageQueue")
    mode: RequestMode


class Assignments(JsonBody, frozen=True, kw_only=True):
    """The answer to QUERY_ASSIGNMENT."""

    assignments: tuple[Assignment, ...] = field(name="messageQueueAssignments")


class PopReceiptText(NamedTuple):
    """What we need of a receipt; client and offset are in the header."""

    popped_at_ms: int
    is_ordered: bool


def read_receipt_text(text: str) -> PopReceiptText:
    """Read the receipt that a client has built."""
    parts = text.split(" ")
    try:
        _, popped_at_ms, _, revive_queue, _, _, _, *_ = parts
        return PopReceiptText(int(popped_at_ms), int(revive_queue) == ORDER_REVIVE_QUEUE)
    except ValueError:
        raise RequestRefused(
            "receipt_malformed", "send the receipt as it came with the message", receipt=text[:100]
        ) from None


def start_offsets_text(offsets: Mapping[int, list[int]]) -> str:
    """Write the first offset of each queue, by queue id."""
    return ";".join(f"{_NORMAL} {queue_id} {min(found)}" for queue_id, found in offsets.items())


def offsets_text(offsets: Mapping[int, list[int]]) -> str:
    """Write the offsets of each queue in ascending order, by queue id."""
    return ";".join(
        f"{_NORMAL} {queue_id} {','.join(map(str, sorted(found)))}"
        for queue_id, found in offsets.items()
    )


def retries_text(retries: Iterable[tuple[int, int, int]]) -> str:
    """Write queue id, offset and number of retries of each message."""
    return ";".join(f"{_NORMAL} qo{queue}%{offset} {count}" for queue, offset, count in retries)
