"""What can be asked of the transaction core, and what it answers.

A command says what somebody wants; the core answers with a ``Decision``: the records that make it
so, a reply, or a refusal.  Nothing has happened until the records are on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.model.message import Message
from escrowmq.model.message_columns import MessageColumns
from escrowmq.transaction.expiry_commands import (
    ExpireGroups,
    ExpireOrigins,
    ExpireQueries,
    ExpireTopic,
    NoteUses,
)
from escrowmq.transaction.pause_command import PauseGroup
from escrowmq.transaction.records import Record
from escrowmq.transaction.states import Resolution, State
from escrowmq.transaction.table import Half

if TYPE_CHECKING:
    from escrowmq.model.errors import RequestRefused

BatchId = int | str

Column: TypeAlias = Sequence[int] | np.ndarray[Any, np.dtype[Any]]
"""Numbers, one for each row."""


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """Hold these half messages for one transaction until it is decided."""

    group: str
    transaction_id: str
    messages: tuple[Message, ...]
    #: The SDK numbers the requests of one transaction from 0; a stock client does not.
    number: int | None = None
    #: A Spark attempt: no limit on the whole transaction, only on each request.
    bulk: bool = False
    #: The UUID of the ledger table that knows the outcome, and how long the sender may take.
    ledger: str = ""
    allowed_ms: int = 0
    #: Age before the first back-check; None means the policy's.
    check_after_ms: int | None = None
    #: Very many messages, in the place of those above.
    columns: MessageColumns | None = None

    @property
    def content(self) -> tuple[Message, ...] | MessageColumns:
        """The messages, in whichever form they came."""
        return self.messages if self.columns is None else self.columns


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Store ordinary messages: visible at once, or each at its own time."""

    messages: tuple[Message, ...]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Commit or roll back the transaction that this half message belongs to."""

    half_offset: int
    resolution: Resolution
    by: str
    #: What the caller believes; checked when given.
    group: str | None = None
    log_offset: int | None = None
    #: One of these must be the transaction's id, if any is given.
    ids: tuple[str, ...] = ()
    #: The epoch that the half message was seen under; checked when given.
    epoch: str = ""
    #: Up to which log offset that epoch was seen.
    seen_to: int = 0
    #: The answer to a back-check: an UNKNOWN is then recorded.
    from_check: bool = False
    #: Why it is UNKNOWN, in the producer's words; recorded with the answer.
    remark: str = ""
    #: A person decides by force, whatever the ledger says: it goes on record.
    is_forced: bool = False


class CheckSent(msgspec.Struct, frozen=True, kw_only=True):
    """A live producer was really asked: its socket took the back-check."""

    half_offset: int
    client: str


class Park(msgspec.Struct, frozen=True, kw_only=True):
    """Stop asking: keep the transaction, undelivered, for a person to settle."""

    half_offset: int
    reason: str


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Start asking again about a parked transaction."""

    half_offset: int
    by: str


class VerdictKind(StrEnum):
    """What the pipeline can tell the broker to do."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    ASK = "ask"
    PARK = "park"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline's word on one transaction, valid only for the version it was computed from."""

    half_offset: int
    kind: VerdictKind
    state: State
    checks_sent: int
    by: str = "settle"
    reason: str = "exhausted"


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline's word on many transactions, by columns; each ends, or is not obeyed."""

    half_offsets: Column
    #: Whether to commit it; else it is rolled back.
    commits: Column
    #: The versions that they were computed from.
    states: Column
    checks_sent: Column
    by: str = "settle"


class AttemptClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What the Spark driver knows of one task's attempt: it must match what was prepared."""

    transaction_id: str
    last_number: int
    rows: int


class DecideBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Commit all these attempts at once, if this batch has not been decided before."""

    app_id: str
    query_id: str
    batch_id: BatchId
    attempts: tuple[AttemptClaim, ...]
    by: str
    #: What the writer says of all its rows, to recognize them; empty if it says nothing.
    content: str = ""
    #: Whether the query decides every number, also of empty batches.
    is_gapless: bool = False


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Make messages visible whose time has come."""

    half_offsets: tuple[int, ...]


class Carry(msgspec.Struct, frozen=True, kw_only=True):
    """Copy forward what is needed of one request, so that the log before it may be deleted.

    A large request is carried in parts, the last rows first: as long as the first row is where it
    was, the request counts as not carried.
    """

    #: The request's first row.
    first: int
    #: The part to carry, as half offsets: from, and up to; None means all of it.
    part: tuple[int, int] | None = None
    #: When the first part of several was carried; 0 if this is the only one.
    since_ms: int = 0


class CarryAlone(msgspec.Struct, frozen=True, kw_only=True):
    """Copy forward ordinary messages that were sent alone and become visible now, in one frame."""

    halves: tuple[Half, ...]


class Abandon(msgspec.Struct, frozen=True, kw_only=True):
    """Repair found bytes of this half message's transaction damaged: it must end undelivered."""

    half_offset: int
    by: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A broker starts: what it writes from here on belongs to this epoch."""

    epoch: str
    #: The boot clock, and which boot of which machine it counts from.
    boot_ms: int = 0
    boot_id: str = ""


class MoveTime(msgspec.Struct, frozen=True, kw_only=True):
    """Put on record that store time moves, or that the wall clock is behind it."""

    from_ms: int
    to_ms: int
    why: str
    by: str = ""
    boot_ms: int = 0
    boot_id: str = ""
    since_ms: int = 0


class PutTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Make a topic, or change it."""

    topic: Topic
    #: One that is there already stays as it is.
    is_only_made: bool = False


class RemoveTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a topic with all that is in it."""

    name: str
    by: str
    #: ``expired``: nobody uses it any more; then it must hold nothing back.
    reason: Literal["deleted", "expired"] = "deleted"
    #: Even if half messages in it are undecided.
    is_forced: bool = False


class PutGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Make a consumer group, or change it."""

    group: Group
    #: One that is there already stays as it is.
    is_only_made: bool = False


class RemoveGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Forget a consumer group, and how far it was."""

    name: str
    by: str
    reason: Literal["deleted", "expired"] = "deleted"


class PutSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Set a value."""

    setting: Setting


class RemoveSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Forget a value."""

    name: str


class MarkCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """Note something about all topics and groups."""

    mark: Literal["kept", "offsets_lost"]
    detail: str = ""


Command = (
    Prepare
    | Append
    | End
    | CheckSent
    | Park
    | Resume
    | Verdict
    | Verdicts
    | DecideBatch
    | Release
    | Carry
    | CarryAlone
    | Abandon
    | Begin
    | PutTopic
    | RemoveTopic
    | PutGroup
    | RemoveGroup
    | PauseGroup
    | PutSetting
    | RemoveSetting
    | MarkCatalog
    | MoveTime
    | ExpireOrigins
    | ExpireQueries
    | NoteUses
    | ExpireGroups
    | ExpireTopic
)


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The one decision of a transaction, whoever asks for it."""

    #: The half message that the request named, whichever of its transaction that is.
    half_offset: int
    state: State
    by: str
    at_ms: int
    #: True when it had been decided before this request.
    repeated: bool


class Held(msgspec.Struct, kw_only=True):
    """Where the half messages of one request are.  The store fills in the log offsets."""

    half_offset: int
    count: int
    log_offsets: list[int]
    repeated: bool = False


class Appended(msgspec.Struct, kw_only=True):
    """Where ordinary messages are; a scheduled one has no queue offset yet (-1)."""

    queue_offsets: list[int]
    log_offsets: list[int]


class BatchReply(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch decision ended: done now, or already done before."""

    outcome: Literal["decided", "already_done"]
    rows: int


class Ended(IntEnum):
    """How one of many verdicts ended."""

    #: Not looked into: it has to be obeyed on its own.
    LEFT = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    STALE = 3


class Obeyed(msgspec.Struct, frozen=True, kw_only=True):
    """How many verdicts ended."""

    #: One byte for each, the code of ``Ended``.
    ends: bytes
    #: Those of them, by their place, that say the opposite of what was decided.
    contradicted: list[int]


class Cataloged(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of topics, groups or settings did."""

    #: False if it was so before.
    is_changed: bool
    #: Half messages in a removed topic that can only be rolled back now, and messages in it that
    #: wait for their time and will never be visible.
    undecided: int = 0
    waiting: int = 0


Reply = Settled | Held | Appended | BatchReply | Obeyed | Cataloged


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the core answers to a command.

    A refusal may have records: a commit that comes too late for its topic parks the transaction.
    """

    records: tuple[Record, ...] = ()
    reply: Reply | None = None
    refused: RequestRefused | None = None
    #: Half messages whose producer should be asked now.
    back_checks: tuple[int, ...] = ()
    #: Messages to be written with the records, in the order of their sizes.
    messages: tuple[Message, ...] = ()
    columns: MessageColumns | None = None
    #: Half messages to be written again with the records.
    copies: tuple[Half, ...] = ()
    #: Requests, by their first rows, to be carried forward in frames of their own before this.
    carries: tuple[int, ...] = ()
    #: Ordinary messages that were sent alone, to be carried together in one frame before this.
    carries_alone: tuple[Half, ...] = ()
