"""The fields of requests for people: settling by hand, deleting, backups, the clock, pauses.

As ``own_headers.py``, which has all the others.
"""

from __future__ import annotations

from escrowmq.protocol.headers import Int64
from escrowmq.protocol.limits import Name
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader


class ByHandHeader(OwnHeader, frozen=True, kw_only=True):
    """RESUME: one transaction, named in one of two ways."""

    #: Any of its half messages; -1 if the id is given.
    half_offset: Int64 = -1
    #: Of several with this id the newest is meant.
    transaction_id: Name = ""
    #: The person who asks for it; the log records the name.
    by: Name


class SettleHeader(ByHandHeader, frozen=True, kw_only=True):
    """SETTLE."""

    #: `commit` or `rollback`.
    resolution: Name
    #: Why, for the record.
    reason: str
    #: The epoch and the end of the log under which the transaction was looked at; another history
    #: of the store refuses.
    epoch: Name = ""
    log_end: Int64 = -1
    #: By force, whatever the ledger says: it goes on record, and an audit lists it.
    is_forced: bool = False


class SettleAnswer(OwnAnswer, frozen=True, kw_only=True):
    """SETTLE."""

    #: `committed` or `rolled_back`.
    decided: str
    decided_by: str
    decided_at_ms: Int64
    is_repeated: bool


class DeleteTopicHeader(OwnHeader, frozen=True, kw_only=True):
    """DELETE_TOPIC."""

    topic: Name
    #: The person who asks for it; the log records the name.
    by: Name
    #: Even if half messages in it are undecided: from then on they can only be rolled back.
    is_forced: bool = False


class DeleteTopicAnswer(OwnAnswer, frozen=True, kw_only=True):
    """DELETE_TOPIC."""

    #: False if there was no such topic.
    is_deleted: bool
    #: Half messages that can only be rolled back now.
    undecided: Int64
    #: Messages that waited for their time, and will never be visible.
    waiting: Int64


class CopyMetaAnswer(OwnAnswer, frozen=True, kw_only=True):
    """COPY_META."""

    #: The data directory, and the copy in it; a later request replaces it.
    data_dir: str
    path: str
    #: Up to where the log is durable.
    log_end: Int64
    #: The setting `store.free_bytes_min`, which a copy on the same disk leaves free.
    free_bytes_min: Int64 = 0


class ConfirmClockHeader(OwnHeader, frozen=True, kw_only=True):
    """CONFIRM_CLOCK."""

    #: How far the wall clock was ahead of store time when the person looked, below 0 behind: if it
    #: is another gap by now, by a minute or more, the broker refuses.
    gap_ms: Int64
    #: The person who confirms the clock; the log records the name.
    by: Name


class ConfirmClockAnswer(OwnAnswer, frozen=True, kw_only=True):
    """CONFIRM_CLOCK."""

    #: Store time before, and what the wall clock said: store time is there now if that is later.
    from_ms: Int64
    to_ms: Int64
    #: For how long nothing is deleted for its age.
    deletion_waits_ms: Int64


class PauseGroupHeader(OwnHeader, frozen=True, kw_only=True):
    """PAUSE_GROUP."""

    group: Name
    #: False resumes the group.
    is_paused: bool
    #: The person who asks for it, and why; the log records both.
    by: Name
    reason: Name = ""


class PauseGroupAnswer(OwnAnswer, frozen=True, kw_only=True):
    """PAUSE_GROUP."""

    #: False if the group was so before.
    is_changed: bool
    #: Members of the group that are online.
    consumers_online: Int64
