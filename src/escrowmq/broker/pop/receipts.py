"""What consumers ask for by pop, and what they get: messages with receipts.

No name of a wire protocol is here: remoting and gRPC use the same types.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.filter import TagCodes

INVISIBLE_MS_MAX = 7 * 24 * 3_600_000
"""The longest time that a message may be in flight without a word from its consumer."""

COUNT_MAX = 32
"""Messages of one answer."""

ANY_QUEUE = -1

_MARK = "1"
_PARTS = 6


class Receive(msgspec.Struct, frozen=True, kw_only=True):
    """A request for messages of a topic."""

    group: str
    topic: str
    #: One queue, or ``ANY_QUEUE``.
    queue_id: int = ANY_QUEUE
    #: The tags wanted; None means all messages.
    tags: TagCodes = None
    count_max: int = COUNT_MAX
    #: How long a message stays in flight.
    invisible_ms: int
    #: How long to wait for a message if there is none.
    wait_ms: int = 0
    #: Whether a queue delivers nothing past a message in flight.
    is_fifo: bool = False
    #: With ``is_fifo``: names this attempt, so that a repeated one gets the same messages again.
    attempt_id: str = ""
    #: Whether a group without a position starts at the end of a long queue, not at its start.
    starts_at_end: bool = False
    #: Whether the request only asks if there is a message, of any tag, and gets none.
    is_question: bool = False


class ReceiveStatus(StrEnum):
    """Outcome of a request for messages.

    ``EMPTY``: the time to wait is over. ``FULL``: too many messages are in flight, or too many
    requests wait.
    """

    FOUND = "found"
    EMPTY = "empty"
    FULL = "full"


class Receipt(msgspec.Struct, frozen=True):
    """Names one delivery of one message. It is checked against the messages in flight.

    ``popped_at_ms`` is the store time of the delivery, or of the last change of its invisible time:
    it tells the deliveries of one message apart. The fields from ``attempt`` on are checked if they
    are given; a remoting client does not know them. ``queue`` is the queue's number, which also
    names the topic's incarnation, and ``epoch`` the broker's start at which the receipt was made.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    popped_at_ms: int
    attempt: int = 0
    queue: int = -1
    epoch: str = ""

    def text(self) -> str:
        """Return the receipt without group and topic, for clients to which it is opaque."""
        parts = (_MARK, self.epoch, self.queue, self.queue_id, self.offset, self.popped_at_ms)
        return ".".join(map(str, (*parts, self.attempt)))


def read_receipt(group: str, topic: str, text: str) -> Receipt:
    """Read a receipt from its text; RequestRefused if it is none."""
    mark, *parts = text.split(".", maxsplit=_PARTS)
    try:
        epoch, *numbers = parts if mark == _MARK else []
        queue, queue_id, offset, popped_at_ms, attempt = map(int, numbers)
    except ValueError:
        raise RequestRefused(
            "receipt_malformed", "send the receipt as it came with the message", receipt=text[:100]
        ) from None
    return Receipt(group, topic, queue_id, offset, popped_at_ms, attempt, queue, epoch)


class AckOutcome(StrEnum):
    """How one acknowledgement ended."""

    #: The message is acknowledged now, or was before, and will not be delivered again.
    ACKNOWLEDGED = "acknowledged"
    #: The message was delivered again since, or the broker restarted, or the receipt is forged.
    STALE = "stale"


class PoppedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message in the stored layout, as its consumer sees it, and its receipt."""

    record: bytes
    receipt: Receipt


class ReceivedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``Receive``."""

    status: ReceiveStatus
    messages: list[PoppedMessage] = []
    popped_at_ms: int = 0
    #: About how many more messages the group could receive.
    rest: int = 0
    #: Whether the filter has not seen all messages yet.
    has_more: bool = False
