"""JSON shapes that commands print with ``-o json``: commands that ask a broker, and errors.

A shape is a public contract. A key is snake_case, never changes its name, type or unit, and is
never removed; new keys may be added. Numbers are JSON numbers. Names of durations in milliseconds
end with ``_ms``, of instants (milliseconds since 1970) with ``_at_ms``, of sizes with ``_bytes``.
A ``#:`` comment describes a key on the reference page.

To add a command or a key: write the shape here, in ``txn/shapes.py`` or in ``tool_shapes.py``,
name it in ``schemas.py``, run ``make docs``, and add a run of the command to the table of
``tests/unit/cli/test_schemas.py``. That test fails until all of this is done.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object that a command prints."""

    @classmethod
    def of(cls, source: object, **more: Any) -> Self:  # noqa: ANN401 - a value of any key
        """Make a shape from the attributes of ``source`` that its keys name, and from ``more``."""
        names = cls.__struct_fields__
        return cls(**{name: getattr(source, name) for name in names if name not in more}, **more)


class ErrorShape(Shape, frozen=True, kw_only=True):
    """Why a command failed; one line on standard error."""

    #: A stable code; `errors.md` lists all of them.
    code: str
    #: The error, and how to correct it.
    message: str
    #: The values that the message is about, by name.
    facts: dict[str, Any]
    #: What to do about the error.
    remedy: str
    #: The exit code of the process.
    exit_code: int


class NoteShape(Shape, frozen=True, kw_only=True):
    """A note about a result, for example that it was cut; one line on standard error."""

    #: The text of the note.
    note: str


class TopicShape(Shape, frozen=True, kw_only=True):
    """A topic."""

    topic: str
    #: `NORMAL`, `FIFO`, `DELAY` or `TRANSACTION`.
    type: str
    #: Number of queues.
    queues: int
    #: RocketMQ's permission bits: 4 for reading, 2 for writing.
    perm: int
    #: When the topic was created; null if unknown.
    created_at_ms: int | None
    #: Whether the broker made the topic for its own use.
    is_system: bool


class TopicQueueShape(Shape, frozen=True, kw_only=True):
    """A queue of a topic."""

    queue_id: int
    #: Offset of the oldest message.
    start: int
    #: Offset that the next message gets.
    end: int
    #: Number of messages in the queue.
    messages: int
    #: By consumer group: messages that the group has not acknowledged.
    lag_by_group: dict[str, int]


class TopicMadeShape(Shape, frozen=True, kw_only=True):
    """A topic that was created or changed, or would be in a dry run."""

    topic: str
    queues: int
    type: str
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class TopicDeletedShape(Shape, frozen=True, kw_only=True):
    """A topic that was deleted, or would be in a dry run."""

    topic: str
    queues: int
    #: Visible messages in its queues before the deletion.
    messages: int
    #: Undecided half messages, which can now only be rolled back; null in a dry run.
    undecided: int | None
    #: Delayed messages that will never be visible; null in a dry run.
    delayed: int | None
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class GroupShape(Shape, frozen=True, kw_only=True):
    """A producer or consumer group."""

    group: str
    #: `producer` or `consumer`.
    role: str
    #: Number of members online.
    online: int
    #: Messages that the group has not acknowledged; null for producers.
    lag: int | None
    #: Of those, messages in flight: delivered by pop, not acknowledged and not visible again.
    in_flight: int | None
    #: When an operator paused the group; null if it is not paused.
    paused_at_ms: int | None


class PauseShape(Shape, frozen=True, kw_only=True):
    """The pause of a consumer group."""

    at_ms: int
    #: The operator who paused it.
    by: str
    #: The operator's reason; empty if none was given.
    reason: str


class GroupPausedShape(Shape, frozen=True, kw_only=True):
    """A consumer group that was paused or resumed, or would be in a dry run."""

    group: str
    #: Whether it is paused now; in a dry run, whether it would be.
    is_paused: bool
    #: False if the group already was in that state.
    is_changed: bool
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class GroupQueueShape(Shape, frozen=True, kw_only=True):
    """A consumer group's progress in one queue."""

    topic: str
    queue_id: int
    #: Offset of the next message that the group gets.
    offset: int
    #: Offset that the queue's next message gets.
    end: int
    #: Messages that the group has not acknowledged.
    lag: int
    #: Of those, messages in flight: delivered by pop, not acknowledged and not visible again.
    in_flight: int = 0


class MemberShape(Shape, frozen=True, kw_only=True):
    """An online member of a group."""

    #: `producer` or `consumer`.
    role: str
    client_id: str
    address: str
    language: str


class GroupShownShape(Shape, frozen=True, kw_only=True):
    """A group in detail."""

    group: str
    queues: list[GroupQueueShape]
    online: list[MemberShape]
    #: The pause; null if the group is not paused.
    pause: PauseShape | None


class OffsetResetShape(Shape, frozen=True, kw_only=True):
    """A consumer group whose offsets were reset, or would be in a dry run."""

    group: str
    topic: str
    #: As given: `earliest`, `latest`, or a time.
    to: str
    #: The given time; null for `earliest` and `latest`.
    to_at_ms: int | None
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class MessageShape(Shape, frozen=True, kw_only=True):
    """A message."""

    topic: str
    queue_id: int
    #: Offset in the queue; null while the message is not visible.
    queue_offset: int | None
    #: Offset of the message in the broker's log.
    log_offset: int
    #: The id that the broker gave the message.
    message_id: str
    #: The id that the sender gave the message.
    unique_key: str
    keys: list[str]
    tags: str
    #: The body as text; null if it is not UTF-8.
    body: str | None
    #: The body in base64 if it is not UTF-8, else null.
    body_base64: str | None
    body_bytes: int
    properties: dict[str, str]
    flag: int
    #: RocketMQ's bits; the lowest bit is set if the body is compressed.
    sys_flag: int
    born_at_ms: int
    stored_at_ms: int
    #: When the message became visible; null while it is not visible.
    visible_at_ms: int | None
    #: How often consumers returned the message for a retry.
    reconsume_times: int
    #: Id of its transaction; null if the message was never a half message.
    transaction_id: str | None


class MessageFoundShape(MessageShape, frozen=True, kw_only=True):
    """A message that was found by one of its ids."""

    #: `visible` or `not_visible`; for a half message `prepared`, `parked`, `committed` or
    #: `rolled_back`; `waiting` for a delayed message that is not due yet.
    state: str


class MessageSentShape(Shape, frozen=True, kw_only=True):
    """A message that was sent, or would be in a dry run."""

    topic: str
    #: Queue that has the message; null in a dry run.
    queue_id: int | None
    #: Offset of the message in its queue; null in a dry run.
    queue_offset: int | None
    unique_key: str
    body_bytes: int
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class DeadLettersShape(Shape, frozen=True, kw_only=True):
    """A consumer group that has dead letters."""

    group: str
    #: Number of its dead letters.
    letters: int
    #: The topic that holds them.
    topic: str


class DeadLetterShape(Shape, frozen=True, kw_only=True):
    """A message that a consumer group gave up."""

    message_id: str
    #: The topic that the message was first sent to.
    topic: str
    given_up_at_ms: int
    #: How often consumers returned the message.
    tries: int
    #: Whether `dlq redrive` has sent it again.
    was_sent_again: bool
    keys: list[str]
    #: Start of the body, with control characters escaped; hexadecimal digits if it is not UTF-8.
    body_preview: str


class RedrivenShape(Shape, frozen=True, kw_only=True):
    """A dead letter, and whether it was sent again or would be in a dry run."""

    message_id: str
    #: The topic that the letter is sent to.
    topic: str
    #: `sent`, `sent_before`, `would_be_sent` in a dry run, or the code of a refusal.
    outcome: str
    #: More about a refusal; else empty.
    detail: str


class ClockShape(Shape, frozen=True, kw_only=True):
    """A broker's clocks."""

    #: Store time, in milliseconds since 1970.
    now_ms: int
    #: The wall clock of the broker's machine, in milliseconds since 1970.
    wall_ms: int
    #: How far the wall clock is ahead of store time; negative if it is behind.
    clock_gap_ms: int
    #: `none`, `ahead`, `behind`, or empty from an older broker.
    clock_gap: str
    #: Whether an operator should check the clock.
    is_clock_doubtful: bool
    #: Whether the kernel says that the wall clock is synchronized.
    is_clock_synchronized: bool
    #: Why retention deletes nothing by age now; empty if it does.
    deletion_waits: str
    #: How much longer deletion waits because store time moved; 0 if it does not wait for that.
    deletion_waits_ms: int


class ClockConfirmedShape(Shape, frozen=True, kw_only=True):
    """A wall clock that an operator confirmed, or that would be confirmed in a dry run."""

    #: Time of the wall clock when it was read, in milliseconds since 1970.
    wall_ms: int
    #: Store time before, in milliseconds since 1970.
    from_ms: int
    #: Store time now, in milliseconds since 1970; null in a dry run.
    to_ms: int | None
    #: How long retention deletes nothing by age; null in a dry run.
    deletion_waits_ms: int | None
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class FindingShape(Shape, frozen=True, kw_only=True):
    """The result of one check of `escrowmq doctor`."""

    #: `ok`, `information`, `warning` or `problem`.
    level: str
    #: Name of the check.
    check: str
    #: What the check found.
    found: str
    #: What to do; empty if there is nothing to do.
    advice: str
