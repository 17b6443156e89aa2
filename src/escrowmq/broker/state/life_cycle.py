"""RocketMQ's names for the stages of a transactional message, and what each one means here.

RocketMQ describes one line from the producer to the deleted file. Here four things change
independently: the transaction's state, the message's place in its queue, the progress of each
consumer group, and what retention has deleted. A stage is one combination of these four.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from escrowmq.transaction.states import State


class Visibility(StrEnum):
    """Whether consumers can see a message."""

    NOWHERE = "in no queue"
    WAITS = "in no queue before its time"
    IN_QUEUE = "in its queue"


class GroupProgress(StrEnum):
    """Progress of a consumer group."""

    NONE = "none"
    BEFORE = "its offset is at the message or before it"
    GIVEN = "the message was pulled, its offset is not past it"
    PAST = "its offset is past the message"


class LifeStage(NamedTuple):
    """One of RocketMQ's stages, and the values of our four things in it."""

    name: str
    #: None: the transaction does not exist yet, or no longer exists.
    states: tuple[State | None, ...]
    place: Visibility
    progress: GroupProgress

    @property
    def is_stored(self) -> bool:
        """Whether the store has the message."""
        return None not in self.states

    @property
    def remark(self) -> str:
        """What the other fields do not say."""
        return _REMARKS[self.name]


_COMMITTED = (State.COMMITTED,)
LIFE_CYCLE: tuple[LifeStage, ...] = (
    LifeStage("initialised", (None,), Visibility.NOWHERE, GroupProgress.NONE),
    LifeStage("pending", (State.PREPARED, State.PARKED), Visibility.NOWHERE, GroupProgress.NONE),
    LifeStage("rollback", (State.ROLLED_BACK,), Visibility.NOWHERE, GroupProgress.NONE),
    LifeStage("timing", _COMMITTED, Visibility.WAITS, GroupProgress.NONE),
    LifeStage("ready", _COMMITTED, Visibility.IN_QUEUE, GroupProgress.BEFORE),
    LifeStage("inflight", _COMMITTED, Visibility.IN_QUEUE, GroupProgress.GIVEN),
    LifeStage("acked", _COMMITTED, Visibility.IN_QUEUE, GroupProgress.PAST),
    LifeStage("deleted", (None,), Visibility.NOWHERE, GroupProgress.NONE),
)
"""The stages in the order in which a message passes through them."""

_REMARKS = {
    "initialised": "sent but not flushed: the producer has no answer yet",
    "pending": "administrators see it in the half topic; a parked"
    " one also in the topic of parked messages",
    "rollback": "no consumer ever sees it; the op topic names it",
    "timing": "only for a message with a delay, which counts from the commit",
    "ready": "the op topic names it",
    "inflight": (
        "only the consumer knows; the broker delivers it again if the offset does not advance"
    ),
    "acked": "for this group; another group may not have read it yet",
    "deleted": "its retention is over; a pending message is carried forward and stays",
}
