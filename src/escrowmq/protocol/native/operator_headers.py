"""Fields and rows of operators' requests: decisions by hand, deletion, backups, clock, pauses.

``headers.py`` has the fields of the other requests.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int64


class OperatorHeader(NativeHeader, frozen=True, kw_only=True):
    """Fields of a request that a person makes."""

    #: The person who makes the request; the log records the name.
    by: Name


class ByHandHeader(OperatorHeader, frozen=True, kw_only=True):
    """RESUME: one transaction, identified by half offset or by id."""

    #: The offset of any of its half messages; -1 if the id is given.
    half_offset: Int64 = -1
    #: If several transactions have this id, the newest one is used.
    transaction_id: Name = ""


class DecideByHandHeader(ByHandHeader, frozen=True, kw_only=True):
    """DECIDE_BY_HAND."""

    #: `commit` or `rollback`.
    resolution: Name
    #: The reason, which the log records.
    reason: str
    #: The epoch in which the person looked at the transaction. A store with another history
    #: refuses the request.
    epoch: Name = ""
    #: The end of the log at that time.
    log_end: Int64 = -1
    #: Decide by force, regardless of the ledger. The log records it, and an audit lists it.
    is_forced: bool = False


class DecideByHandAnswer(NativeAnswer, frozen=True, kw_only=True):
    """DECIDE_BY_HAND."""

    #: `committed` or `rolled_back`.
    decided: str
    decided_by: str
    decided_at_ms: Int64
    is_repeated: bool


class DeleteTopicHeader(OperatorHeader, frozen=True, kw_only=True):
    """DELETE_TOPIC."""

    topic: Name
    #: Delete even if half messages in the topic are undecided. They can then only be rolled back.
    is_forced: bool = False


class DeleteTopicAnswer(NativeAnswer, frozen=True, kw_only=True):
    """DELETE_TOPIC."""

    #: False if the topic did not exist.
    is_deleted: bool
    #: Undecided half messages, which can now only be rolled back.
    undecided: Int64
    #: Scheduled messages, which will never become visible.
    waiting: Int64


class CopyMetaAnswer(NativeAnswer, frozen=True, kw_only=True):
    """COPY_META."""

    #: The data directory.
    data_dir: str
    #: The copy in the data directory, which a later request replaces.
    path: str
    #: The durable end of the log.
    log_end: Int64
    #: The setting `store.free_bytes_min`, which a copy on the same disk leaves free.
    free_bytes_min: Int64 = 0


class ConfirmClockHeader(OperatorHeader, frozen=True, kw_only=True):
    """CONFIRM_CLOCK."""

    #: How far the wall clock was ahead of store time when the person looked; negative if behind.
    #: The broker refuses if the gap has changed by a minute or more.
    gap_ms: Int64


class ConfirmClockAnswer(NativeAnswer, frozen=True, kw_only=True):
    """CONFIRM_CLOCK."""

    #: Store time before the request.
    from_ms: Int64
    #: The wall clock, which is the new store time if it is later than the old one.
    to_ms: Int64
    #: How long the broker deletes nothing for its age.
    deletion_waits_ms: Int64


class PauseGroupHeader(OperatorHeader, frozen=True, kw_only=True):
    """PAUSE_GROUP."""

    group: Name
    #: False resumes the group.
    is_paused: bool
    #: The reason, which the log records.
    reason: Name = ""


class PauseGroupAnswer(NativeAnswer, frozen=True, kw_only=True):
    """PAUSE_GROUP."""

    #: False if the group was already in this state.
    is_changed: bool
    #: Members of the group that are online now.
    consumers_online: Int64


class PausedRow(NativeRow, frozen=True):
    """A consumer group that is paused."""

    group: str
    #: The person who paused it.
    by: str
    #: Store time of the pause.
    at_ms: Int64
    reason: str
