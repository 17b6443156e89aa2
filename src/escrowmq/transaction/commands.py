"""Commands to the transaction core, and its answers.

The core answers a command with a ``Decision``: the records that carry it out, a reply, or a
refusal. Nothing has happened until the records are on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.model.message import SentMessage
from escrowmq.model.message_columns import MessageColumns
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.expiry_commands import ExpiryCommand
from escrowmq.transaction.pause_command import PauseGroup
from escrowmq.transaction.pop_commands import PopCommand
from escrowmq.transaction.recall_commands import Recall, RecallReply
from escrowmq.transaction.records import Record
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half
from escrowmq.transaction.user_commands import UserCommand

if TYPE_CHECKING:
    from escrowmq.model.errors import RequestRefused

BatchId = int | str

NumberColumn: TypeAlias = Sequence[int] | np.ndarray[Any, np.dtype[Any]]
"""Numbers, one for each row."""


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """Hold these half messages for one transaction until it is decided."""

    group: str
    transaction_id: str
    messages: tuple[SentMessage, ...]
    #: The SDK numbers the requests of one transaction from 0; a stock client does not.
    number: int | None = None
    #: A Spark attempt: no limit on the whole transaction, only on each request.
    bulk: bool = False
    #: The UUID of the ledger table that has the outcome, and how long the sender may take.
    ledger: str = ""
    allowed_ms: int = 0
    #: The user that sends the request; empty without access control.
    user: str = ""
    #: Age before the first back-check; None means the policy's.
    check_after_ms: int | None = None
    #: The messages of a large request, instead of ``messages``.
    columns: MessageColumns | None = None

    @property
    def content(self) -> tuple[SentMessage, ...] | MessageColumns:
        """The messages, one by one or in columns."""
        return self.messages if self.columns is None else self.columns


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Store ordinary messages: visible at once, or each at its own time."""

    messages: tuple[SentMessage, ...]


class HalfCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the commands about the transaction that a half message belongs to."""

    half_offset: int


class End(HalfCommand, frozen=True, kw_only=True):
    """Commit or roll back the transaction that this half message belongs to."""

    resolution: Resolution
    by: str
    #: The producer group and log offset that the caller expects; checked when given.
    group: str | None = None
    log_offset: int | None = None
    #: One of these must be the transaction's id, if any is given.
    ids: tuple[str, ...] = ()
    #: The epoch under which the caller saw the half message; checked when given.
    epoch: str = ""
    #: The log offset up to which the caller saw that epoch.
    seen_to: int = 0
    #: Whether this answers a back-check: an UNKNOWN is then recorded.
    from_check: bool = False
    #: Why it is UNKNOWN, in the producer's words; recorded with the answer.
    remark: str = ""
    #: Whether a person forces the decision, whatever the ledger says; the record says so.
    is_forced: bool = False


class CheckSent(HalfCommand, frozen=True, kw_only=True):
    """Count a back-check that a live producer's socket took."""

    client: str


class Park(HalfCommand, frozen=True, kw_only=True):
    """Stop the back-checks; keep the transaction, undelivered, for an operator to decide."""

    reason: str


class Resume(HalfCommand, frozen=True, kw_only=True):
    """Restart the back-checks of a parked transaction."""

    by: str


class VerdictKind(StrEnum):
    """Actions that a verdict can request."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    ASK = "ask"
    PARK = "park"


class Verdict(HalfCommand, frozen=True, kw_only=True):
    """Verdict of a pipeline or the broker on one transaction; stale if state or checks changed."""

    kind: VerdictKind
    state: State
    checks_sent: int
    by: str = "settle"
    reason: str = "exhausted"


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of a pipeline or the broker on many transactions, to commit or roll back each."""

    half_offsets: NumberColumn
    #: Whether to commit the transaction instead of rolling it back.
    commits: NumberColumn
    #: The versions that the verdicts were computed from: state and checks sent.
    states: NumberColumn
    checks_sent: NumberColumn
    by: str = "settle"


class AttemptClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The Spark driver's claim about one attempt: it must match what the broker holds."""

    transaction_id: str
    last_number: int
    rows: int


class DecideBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Commit all these attempts at once, if this batch has not been decided before."""

    app_id: str
    query_id: str
    batch_id: BatchId
    by: str
    attempts: tuple[AttemptClaim, ...]
    #: The writer's fingerprint of all rows; empty if it gave none.
    content: str = ""
    #: Whether the query decides every number, including those of empty batches.
    is_gapless: bool = False


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Make messages visible that are due."""

    half_offsets: tuple[int, ...]


class Carry(msgspec.Struct, frozen=True, kw_only=True):
    """Carry forward the needed rows of one request, so that the log before them can be deleted.

    A large request is carried in parts, the last rows first. It counts as not carried until the
    part with its first row is.
    """

    #: The request's first row.
    first: int
    #: The half offsets ``[start, end)`` to carry; None means all of the request.
    part: tuple[int, int] | None = None
    #: When the first of several parts was carried; 0 if this is the only part.
    since_ms: int = 0


class CarryAlone(msgspec.Struct, frozen=True, kw_only=True):
    """Carry forward, in one frame, ordinary messages sent alone that become visible now."""

    halves: tuple[Half, ...]


class Abandon(HalfCommand, frozen=True, kw_only=True):
    """End a half message undelivered, because repair found its transaction damaged."""

    by: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """Start an epoch: everything that the broker writes from here on belongs to it."""

    epoch: str
    #: The boot clock, and the id of the boot that it counts from.
    boot_ms: int = 0
    boot_id: str = ""


class MoveTime(msgspec.Struct, frozen=True, kw_only=True):
    """Record that store time moves, or that the wall clock is behind it or no longer is."""

    from_ms: int
    to_ms: int
    why: str
    by: str = ""
    boot_ms: int = 0
    boot_id: str = ""
    since_ms: int = 0


class PutTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Create a topic, or change it."""

    topic: Topic
    #: Whether it is made by use: an existing topic then stays as it is.
    is_only_made: bool = False


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the commands that remove something by its name."""

    name: str
    by: str
    #: ``expired`` means unused: a topic must then have no undecided and no waiting messages.
    reason: Literal["deleted", "expired"] = "deleted"


class RemoveTopic(Removal, frozen=True, kw_only=True):
    """Remove a topic with all its messages."""

    #: Remove the topic even if it has undecided half messages.
    is_forced: bool = False


class PutGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Create a consumer group, or change it."""

    group: Group
    #: Whether it is made by use: an existing group then stays as it is.
    is_only_made: bool = False


class RemoveGroup(Removal, frozen=True, kw_only=True):
    """Remove a consumer group and its offsets."""


class PutSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Set a value that a tool stores in the broker."""

    setting: Setting


class RemoveSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a value that a tool stored in the broker."""

    name: str


class MarkCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """Record a mark about all topics and groups."""

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
    | ExpiryCommand
    | PopCommand
    | Recall
    | UserCommand
)


class EndReply(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a transaction, which is the same for every caller."""

    #: The half message that the request named; it may be any half message of the transaction.
    half_offset: int
    state: State
    by: str
    at_ms: int
    #: True when it had been decided before this request.
    repeated: bool


class HoldReply(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one request's half messages."""

    half_offset: int
    count: int
    log_offsets: list[int]
    repeated: bool = False


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of ordinary messages; a scheduled message has no queue offset yet (-1)."""

    queue_offsets: list[int]
    log_offsets: list[int]


class BatchReply(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch decision ended: done now, or already done before."""

    outcome: Literal["decided", "already_done"]
    rows: int


class Ended(IntEnum):
    """How one of many verdicts ended."""

    #: Not decided here: the caller must submit it as a single ``Verdict``.
    LEFT = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    STALE = 3


class Obeyed(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of ``Verdicts``."""

    #: One byte per verdict, the code of its ``Ended``.
    ends: bytes
    #: Indexes of the verdicts that say the opposite of what was decided.
    contradicted: list[int]


class Cataloged(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a change to topics, groups or settings."""

    #: False if there was nothing to change.
    is_changed: bool
    #: In a removed topic: half messages that can now only be rolled back, and messages that wait
    #: for their time and will never be visible.
    undecided: int = 0
    waiting: int = 0


Reply = EndReply | HoldReply | Appended | BatchReply | Obeyed | Cataloged | RecallReply


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The core's answer to a command, or the store's once it has made the frame.

    A refusal may have records: a commit whose topic was deleted parks the transaction.
    """

    records: tuple[Record, ...] = ()
    #: None from the core if messages are to be written: the store replies with their log offsets.
    reply: Reply | None = None
    refused: RequestRefused | None = None
    #: In the refusal of a decision: the opposite one, which stands.
    contradicted: EndReply | None = None
    #: Half messages about which the caller must back-check a producer now.
    back_checks: tuple[int, ...] = ()
    #: Messages to write with the records, in the order of ``Placed``.
    messages: tuple[SentMessage, ...] = ()
    columns: MessageColumns | None = None
    #: Half messages whose bytes are written again with the records.
    copies: tuple[Half, ...] = ()
    #: First rows of requests to carry forward before the records, each in a frame of its own.
    carries: tuple[int, ...] = ()
    #: Ordinary messages, sent alone, to carry forward before the records, all in one frame.
    carries_alone: tuple[Half, ...] = ()
