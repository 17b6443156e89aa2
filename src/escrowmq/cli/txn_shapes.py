"""The shapes of what ``escrowmq txn`` prints with ``-o json``; see ``shapes.py``."""

from __future__ import annotations

from escrowmq.cli.shapes import LedgerReportShape, Shape


class TransactionShape(Shape, frozen=True, kw_only=True):
    """A transaction in a list, and the first message of it."""

    #: The number of its first half message.
    half: int
    #: `prepared`, `parked`, `committed` or `rolled_back`.
    state: str
    age_ms: int
    #: The producer group.
    group: str
    #: Back-checks that were sent.
    checks: int
    #: Below 0: that long overdue.  Null if it is not checked.
    next_check_in_ms: int | None
    #: Producers of its group that are online.
    producers: int
    #: The UUID of its ledger; null or empty without one.
    ledger: str | None
    #: Null if it was not asked for.
    id: str | None
    #: Of the first message, as are the next four; null if that is not known or was not asked for.
    topic: str | None
    keys: list[str] | None
    tags: str | None
    body_preview: str | None
    body_bytes: int | None
    #: How many messages it holds.
    message_count: int | None


class WatchedShape(Shape, frozen=True, kw_only=True):
    """One look at what is undecided."""

    #: When, on the clock of this machine.
    at_ms: int
    #: The oldest first, at most `--limit` of them.
    transactions: list[TransactionShape]


class HeldMessageShape(Shape, frozen=True, kw_only=True):
    """A message that a transaction holds."""

    topic: str
    queue_id: int
    keys: list[str]
    tags: str
    body_preview: str
    body_bytes: int
    message_id: str
    unique_key: str


class EventShape(Shape, frozen=True, kw_only=True):
    """Something that happened to a transaction."""

    at_ms: int
    #: `held`, `asked`, `answered`, `parked`, `resumed`, `committed`, `rolled_back` or `visible`.
    event: str
    #: Where its record is in the broker's log.
    log_offset: int
    #: By whom, or who was asked.
    by: str
    #: Which check, why, or where and how many.
    detail: str


class TransactionHeadShape(Shape, frozen=True, kw_only=True):
    """How it stands with a transaction."""

    id: str
    #: `prepared`, `parked`, `committed` or `rolled_back`.
    state: str
    #: The number of its first half message.
    half: int
    #: The producer group.
    group: str
    #: The UUID of its ledger; empty without one.
    ledger: str
    #: Back-checks that were sent.
    checks: int
    #: Producers of its group that are online.
    producers: int
    #: Null if it is not checked.
    next_check_at_ms: int | None
    #: When its first message became visible; null if it has not.
    visible_at_ms: int | None
    #: The first messages that it holds.
    messages: list[HeldMessageShape]
    #: How many more it holds.
    messages_left_out: int


class TransactionShownShape(TransactionHeadShape, frozen=True, kw_only=True):
    """A transaction, and all that happened to it."""

    events: list[EventShape]


class TransactionExplainedShape(TransactionHeadShape, frozen=True, kw_only=True):
    """A transaction, and why it is as it is."""

    #: The explanation.
    words: str
    #: What pipelines reported about its ledger.
    ledger_reports: list[LedgerReportShape]


class SettledShape(Shape, frozen=True, kw_only=True):
    """A transaction that was decided by hand."""

    id: str
    #: `commit` or `rollback`.
    resolution: str
    #: Its state now.
    state: str
    #: Whether the decision is allowed and open; false only in a dry run.
    is_allowed: bool
    #: Whether it had been decided like this before; null in a dry run.
    is_repeated: bool | None
    #: Null in a dry run.
    decided_by: str | None
    #: Null in a dry run.
    decided_at_ms: int | None
    #: What was done, or would be.
    words: str
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class SettledRowShape(Shape, frozen=True, kw_only=True):
    """A transaction that `--filter` chose, and what became of it."""

    #: The number of its first half message.
    half: int
    id: str
    #: The producer group.
    group: str
    #: Its state when it was chosen: `prepared` or `parked`.
    state: str
    age_ms: int
    #: Of the message that the filter means, or else of the first one; null if that is not known.
    topic: str | None
    #: Of the same message.
    keys: list[str] | None
    #: `committed`, `rolled_back`, `refused`, `unknown` (the answer was lost) or `not_tried`.  In a
    #: dry run `would_commit`, `would_rollback`, `would_force_commit`, `would_force_rollback` or
    #: `would_refuse`.
    outcome: str
    #: Why, or what its ledger says; may be empty.
    detail: str


class SettledManyShape(Shape, frozen=True, kw_only=True):
    """Transactions that were decided by hand, chosen by `--filter`."""

    #: `commit` or `rollback`.
    resolution: str
    #: By outcome: how many transactions.
    counts: dict[str, int]
    #: The oldest first, at most `--limit` of them.
    transactions: list[SettledRowShape]
    #: Whether the filter matches more transactions than `--limit`.
    is_cut: bool
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class ResumedShape(Shape, frozen=True, kw_only=True):
    """A parked transaction that is checked again."""

    #: As it was named.
    transaction: str
    #: Whether it can be resumed; false only in a dry run.
    is_allowed: bool
    #: True for a dry run, which changed nothing.
    is_dry_run: bool
