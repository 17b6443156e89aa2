"""RocketMQ's classic API: a listener runs the local transaction and answers back-checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.client.messages.messages import SendStatus
from escrowmq.client.messages.outgoing import FinalDecision
from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution

if TYPE_CHECKING:
    from escrowmq.client.messages.messages import Message, Received

log = event_log(__name__)


class TransactionListener(Protocol):
    """Interface of a listener, which you implement. An async producer takes async methods, too."""

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        """Run the local transaction; the broker already holds the half message.

        ``message.transaction_id`` is the id that ``check_local_transaction`` will be asked about.
        As in RocketMQ, the property ``__transactionId__`` has the id that the broker stores.
        An exception, or None, means UNKNOWN: the broker will back-check.
        """

    def check_local_transaction(self, message: Received) -> Resolution | None:
        """Return the outcome; a sync method runs in a thread. An exception or None is UNKNOWN."""


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of sending a message with a listener."""

    transaction_id: str
    message_id: str
    topic: str
    broker_name: str
    #: The queue in which the message will appear.
    queue_id: int
    #: The half message's number at its broker; RocketMQ's clients call it the queue offset.
    half_offset: int
    #: How safely the half message is stored.
    status: SendStatus
    #: The listener's answer; UNKNOWN if it raised an exception.
    resolution: Resolution
    #: The broker's decision; None if the broker was not told or did not reply: it will back-check.
    decided: FinalDecision | None
    #: The exception that the listener raised, if any.
    error: Exception | None = None


def resolution_of(answer: object) -> Resolution:
    """Return a user's answer as a resolution; anything but a Resolution is UNKNOWN."""
    if answer is None:
        return Resolution.UNKNOWN
    if isinstance(answer, Resolution):
        return answer
    log.error("answer_odd", extra={"answer": repr(answer)[:256]})
    return Resolution.UNKNOWN
