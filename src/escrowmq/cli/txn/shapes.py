"""JSON shapes that ``escrowmq txn`` prints with ``-o json``; see ``cli/shapes/``."""

from __future__ import annotations

from escrowmq.cli.shapes.broker_shapes import Shape
from escrowmq.cli.shapes.ledger_shape import LedgerReportShape
from escrowmq.protocol.native.rows import EventRow


class TransactionShape(Shape, frozen=True, kw_only=True):
    """A transaction in a list, with its first message."""

    #: Number of its first half message.
    half: int
    #: `prepared`, `parked`, `committed` or `rolled_back`.
    state: str
    age_ms: int
    #: The producer group.
    group: str
    #: Back-checks sent.
    checks: int
    #: Time until the next check; negative if it is overdue, null if none is planned.
    next_check_in_ms: int | None
    #: Number of its group's producers online.
    producers: int
    #: UUID of its ledger; null or empty if it has none.
    ledger: str | None
    #: The transaction's id; null if it was not requested.
    id: str | None
    #: Topic of the first message; the next four keys describe it, too. Null if the message is
    #: unknown or was not requested.
    topic: str | None
    keys: list[str] | None
    tags: str | None
    body_preview: str | None
    body_bytes: int | None
    #: Number of messages in the transaction.
    message_count: int | None


class WatchedShape(Shape, frozen=True, kw_only=True):
    """The undecided transactions at one moment."""

    #: Time by the clock of this machine.
    at_ms: int
    #: The oldest first, at most `--limit` of them.
    transactions: list[TransactionShape]


class HeldMessageShape(Shape, frozen=True, kw_only=True):
    """A message of a transaction."""

    topic: str
    queue_id: int
    keys: list[str]
    tags: str
    body_preview: str
    body_bytes: int
    message_id: str
    unique_key: str


class EventShape(
    EventRow, Shape, frozen=True, kw_only=True, array_like=False, forbid_unknown_fields=True
):
    """An event in the history of a transaction: the row that a broker sends."""


class TransactionHeadShape(Shape, frozen=True, kw_only=True):
    """The state of a transaction."""

    id: str
    #: `prepared`, `parked`, `committed` or `rolled_back`.
    state: str
    #: Number of its first half message.
    half: int
    #: The producer group.
    group: str
    #: UUID of its ledger; empty if it has none.
    ledger: str
    #: Back-checks sent.
    checks: int
    #: Number of its group's producers online.
    producers: int
    #: When the next check is due; null if none is planned.
    next_check_at_ms: int | None
    #: When its first message became visible; null if it is not visible.
    visible_at_ms: int | None
    #: The first messages of the transaction.
    messages: list[HeldMessageShape]
    #: Number of messages that are not listed here.
    messages_left_out: int


class TransactionShownShape(TransactionHeadShape, frozen=True, kw_only=True):
    """A transaction and its history."""

    events: list[EventShape]


class TransactionExplainedShape(TransactionHeadShape, frozen=True, kw_only=True):
    """A transaction and the explanation of its state."""

    #: Sentences that explain the state and what comes next.
    words: str
    #: What pipelines or the broker reported about the ledger.
    ledger_reports: list[LedgerReportShape]


class DecidedShape(Shape, frozen=True, kw_only=True):
    """A transaction that was decided by hand, or in a dry run would be or would be refused."""

    id: str
    #: `commit` or `rollback`.
    resolution: str
    #: State of the transaction after the command.
    state: str
    #: Whether this decision is possible; false only in a dry run.
    is_allowed: bool
    #: Whether it was already decided this way; null in a dry run.
    is_repeated: bool | None = None
    #: Source of the decision; null in a dry run.
    decided_by: str | None = None
    #: When it was decided; null in a dry run.
    decided_at_ms: int | None = None
    #: Text about what was done, or what a run would do.
    words: str
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class DecidedRowShape(Shape, frozen=True, kw_only=True):
    """A transaction that `--filter` selected, and its outcome."""

    #: Number of its first half message.
    half: int
    id: str
    #: The producer group.
    group: str
    #: Its state when it was selected: `prepared` or `parked`.
    state: str
    age_ms: int
    #: Topic of the first message that matches the filter; null if it is unknown.
    topic: str | None
    #: Keys of that message; null if it is unknown.
    keys: list[str] | None
    #: `committed`, `rolled_back`, `refused`, `not_tried`, or `unknown` (the command was interrupted
    #: or the answer was lost, so the broker may have decided it). In a dry run `would_commit`,
    #: `would_rollback`, `would_force_commit`, `would_force_rollback` or `would_refuse`.
    outcome: str
    #: The reason, or what its ledger says; may be empty.
    detail: str


class DecidedManyShape(Shape, frozen=True, kw_only=True):
    """Transactions that `--filter` selected, with the outcome of each."""

    #: `commit` or `rollback`.
    resolution: str
    #: Number of transactions by outcome.
    counts: dict[str, int]
    #: The oldest first, at most `--limit` of them.
    transactions: list[DecidedRowShape]
    #: Whether the filter matches more transactions than `--limit`.
    is_cut: bool
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class ResumedShape(Shape, frozen=True, kw_only=True):
    """A parked transaction that was resumed, or in a dry run would be or would be refused."""

    #: The id or number as given.
    transaction: str
    #: Whether it can be resumed; false only in a dry run.
    is_allowed: bool
    #: True for a dry run, which changed nothing.
    is_dry_run: bool
