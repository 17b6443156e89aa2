"""RocketMQ's classic way: a listener runs the local transaction and answers for it later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.client.messages import SendStatus
from escrowmq.client.outgoing import Decided, Resolution
from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.client.messages import Message, Received

log = event_log(__name__)


class TransactionListener(Protocol):
    """Yours; with an async producer, its methods may be async."""

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        """Do the local transaction, once the half message is held.

        ``message.transaction_id`` is the id that ``check_local_transaction`` will be asked about.
        An exception, or None, is UNKNOWN: the broker will ask.
        """
        ...

    def check_local_transaction(self, message: Received) -> Resolution | None:
        """Say what became of it; runs in a thread.  An exception, or None, is UNKNOWN."""
        ...


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message that was sent with a listener."""

    transaction_id: str
    message_id: str
    topic: str
    broker_name: str
    #: The queue that the message is for.
    queue_id: int
    #: The number of the half message at its broker; RocketMQ's clients call it the queue offset.
    half_offset: int
    #: How safely the half message is stored.
    status: SendStatus
    #: What the listener said.
    resolution: Resolution
    #: What the broker says; None if it was told nothing, or did not answer: it will ask.
    decided: Decided | None
    #: What the listener raised.
    error: Exception | None = None


def resolution_of(answer: object) -> Resolution:
    """What a user's function meant: anything but a resolution is UNKNOWN."""
    if answer is None:
        return Resolution.UNKNOWN
    if isinstance(answer, Resolution):
        return answer
    log.error("answer_odd", extra={"answer": repr(answer)[:256]})
    return Resolution.UNKNOWN
