"""RocketMQ's names for the stages of a transactional message, and what each one means here.

RocketMQ describes one line from the producer to the deleted file. Here four things change
independently: the transaction's state, the message's place in its queue, the progress of each
consumer group, and what retention has deleted. A stage is one combination of these four.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from escrowmq.transaction.states import State


class Place(StrEnum):
    """Whether consumers can see a message."""

    NOWHERE = "in no queue"
    WAITS = "in no queue before its time"
    IN_QUEUE = "in its queue"


class Progress(StrEnum):
    """Progress of a consumer group."""

    NONE = "none"
    BEFORE = "its offset is at the message or before it"
    GIVEN = "the message was pulled, its offset is not past it"
    PAST = "its offset is past the message"


class Stage(NamedTuple):
    """One of RocketMQ's stages, and the values of our four things in it."""

    name: str
    #: None: the transaction does not exist yet, or no longer exists.
    states: tuple[State | None, ...]
    place: Place
    progress: Progress
    is_stored: bool
    remark: str


LIFE_CYCLE: tuple[Stage, ...] = (
    Stage(
        "initialised",
        (None,),
        Place.NOWHERE,
        Progress.NONE,
        is_stored=False,
        remark="sent, but not flushed: the producer has no answer yet",
    ),
    Stage(
        "pending",
        (State.PREPARED, State.PARKED),
        Place.NOWHERE,
        Progress.NONE,
        is_stored=True,
        remark="for administrators in the half topic; a parked one in that of the parked, too",
    ),
    Stage(
        "rollback",
        (State.ROLLED_BACK,),
        Place.NOWHERE,
        Progress.NONE,
        is_stored=True,
        remark="no consumer ever sees it; the op topic names it",
    ),
    Stage(
        "timing",
        (State.COMMITTED,),
        Place.WAITS,
        Progress.NONE,
        is_stored=True,
        remark="only a message with a delay: it counts from the commit",
    ),
    Stage(
        "ready",
        (State.COMMITTED,),
        Place.IN_QUEUE,
        Progress.BEFORE,
        is_stored=True,
        remark="the op topic names it",
    ),
    Stage(
        "inflight",
        (State.COMMITTED,),
        Place.IN_QUEUE,
        Progress.GIVEN,
        is_stored=True,
        remark="the consumer knows it, the broker does not: it is pulled again if nobody moves on",
    ),
    Stage(
        "acked",
        (State.COMMITTED,),
        Place.IN_QUEUE,
        Progress.PAST,
        is_stored=True,
        remark="for this group; another one may still be before it",
    ),
    Stage(
        "deleted",
        (None,),
        Place.NOWHERE,
        Progress.NONE,
        is_stored=False,
        remark="its retention is over; one that is pending is carried forward and stays",
    ),
)
"""The stages in the order in which a message passes through them."""


def life_cycle_table() -> str:
    """Return the table of the reference page."""
    rows = [
        "| RocketMQ's name | Transaction | For consumers | Group's progress | Stored | Remark |",
        "|---|---|---|---|---|---|",
    ]
    for stage in LIFE_CYCLE:
        states = " or ".join(
            f"`{one.label}`" if one is not None else "none" for one in stage.states
        )
        stored = "yes" if stage.is_stored else "no"
        rows.append(
            f"| {stage.name} | {states} | {stage.place} | {stage.progress} | {stored} "
            f"| {stage.remark} |"
        )
    return "\n".join(rows)
