"""The fields of our own requests and of their answers, besides the rows in the body.

``own.py`` says which belongs to which.  A field's comment is what the reference page says of it.
"""

from __future__ import annotations

from escrowmq.protocol.headers import Header, Int32, Int64
from escrowmq.protocol.limits import Name, NameList
from escrowmq.protocol.own_forms import Form


class OwnHeader(Header, frozen=True, kw_only=True):
    """Any request."""

    #: How rows travel, in both directions.
    form: Form = Form.MSGPACK
    #: The version of the rows' columns, in both directions.
    version: Int32 = 1


class OwnAnswer(Header, frozen=True, kw_only=True):
    """Any answer."""

    form: Form = Form.MSGPACK
    version: Int32 = 1
    #: Rows in the body.
    row_count: Int32 = 0
    #: The broker's clock.
    now_ms: Int64 = 0
    #: The epoch under which the broker answers; empty from a release without a lineage.
    epoch: str = ""


class OwnRefusal(Header, frozen=True, kw_only=True):
    """Why not; the remark says it for people."""

    #: The error's code.
    error: str
    #: The error's class: who must act.
    kind: str
    #: When to try again, if that may help.
    retry_after_ms: Int64 | None = None


class PagedHeader(OwnHeader, frozen=True, kw_only=True):
    """A request that is answered in pages."""

    #: Rows to answer at most; 0 means as many as there may be.
    limit: Int32 = 0
    #: What the last page said; empty for the first.
    cursor: NameList = ""


class PagedAnswer(OwnAnswer, frozen=True, kw_only=True):
    """A page.  It may have fewer rows than asked for, or none, and yet not be the last."""

    #: Ask for the next page with it; absent after the last.
    cursor: str | None = None


class ListHeader(PagedHeader, frozen=True, kw_only=True):
    """A request for very many rows."""

    #: Names of the columns that are wanted, with commas between them; empty for all.  Rows that
    #: are no Arrow's always have all.
    columns: NameList = ""


# Facts.


class StatusAnswer(OwnAnswer, frozen=True, kw_only=True):
    """STATUS."""

    broker: str
    cluster: str
    broker_version: str
    broker_address: str
    started_at_ms: Int64
    #: Transactions that are neither decided nor parked.
    undecided: Int64
    #: The age of the oldest of them; 0 if there is none.
    oldest_undecided_age_ms: Int64
    #: Those of them that nobody can be asked about: no producer of their group is online, and
    #: they have no ledger.
    undecided_without_producer: Int64
    #: Transactions that wait for a person.
    parked: Int64
    #: Back-checks that producers were sent since the start.
    checks_sent: Int64
    #: Transactions since the start of which somebody said the opposite of what was decided.
    contradictions: Int64
    #: When the pipeline last sent verdicts, and since when neither those nor AWAIT_DUE came from
    #: it: 0 for never.
    last_verdict_at_ms: Int64
    pipeline_away_since_ms: Int64
    connections: Int32
    #: Members of groups, each counted once per group.
    producers_online: Int32
    consumers_online: Int32
    pulls_waiting: Int32
    topics: Int32
    queues: Int32
    #: Log offsets that can be read: from, and up to.
    log_start: Int64
    log_end: Int64
    #: Half offsets that are known: from, and up to.
    half_start: Int64
    half_end: Int64
    #: The policy for back-checks: settings of the section `[transaction]`.
    check_after_ms: Int64
    check_interval_ms: Int64
    check_backoff: float
    check_interval_max_ms: Int64
    checks_max: Int32
    park_after_ms: Int64
    #: `fsync` or `os`; empty from a release that does not say, as is all that follows.
    durability: str = ""
    #: For what there is room on the disk (`all`, `no_messages`, `no_decisions`, `nothing`), and
    #: how much is free.
    disk: str = ""
    disk_free_bytes: Int64 = 0
    #: Of the last thousand flushes: what half of them took at most, and 99 of 100.
    flush_ms_median: float = 0.0
    flush_ms_p99: float = 0.0
    #: Files that the process may have open.
    open_files_max: Int64 = 0
    #: The store's id and its epochs, each with its log offset, half offset and store time:
    #: `STORE/ID:LOG:HALF:TIME,…`.
    lineage: str = ""
    #: Why consumer offsets were lost before this start; empty if they were not.  Topics of which
    #: only queues were left, with commas between them.
    offsets_lost: str = ""
    topics_found: str = ""
    #: Kinds of names of which 80 % of the limit is in use, and how many; empty if there is none.
    names_near: str = ""
    #: The machine's wall clock, whether the kernel vouches for it, and how far it is ahead of store
    #: time, which is `nowMs`; below 0, behind.
    wall_ms: Int64 = 0
    is_clock_synchronized: bool = False
    clock_gap_ms: Int64 = 0
    #: `none`; `ahead`, and nobody vouches for it; or `behind`.  Whether a person should look at it.
    clock_gap: str = ""
    is_clock_doubtful: bool = False
    #: Why nothing is deleted for its age (empty: it is), and for how long as far as that is known.
    deletion_waits: str = ""
    deletion_waits_ms: Int64 = 0
    #: What deletes old messages: `idle`, `working`, `waits_for_room`, `waits_for_decisions` or
    #: `waits_for_permission`; and how much room is missing.
    retention: str = ""
    retention_missing_bytes: Int64 = 0
    #: Bytes of messages that are undecided, parked or not yet due, and the setting
    #: `store.retention_bytes`, against which they do not count.
    undecided_bytes: Int64 = 0
    retention_bytes: Int64 = 0
    #: Of the free bytes, those that the reserve holds.
    disk_reserve_bytes: Int64 = 0
    #: Pipelines whose reports about ledgers count now; LIST_LEDGERS tells what they say.
    pipelines_reporting: Int32 = 0
    #: Of the reported ledgers, those that the pipeline does not reach.
    ledgers_unreachable: Int32 = 0
    #: Undecided transactions that name a ledger which no pipeline reaches; 0 without a report.
    undecided_without_ledger: Int64 = 0
    #: Consumer groups that are paused.
    groups_paused: Int64 = 0
    #: Notices of alerts: `off` or `on`; empty if the broker is older than this field.
    alerts: str = ""
    #: Alerts that hold and were told, with commas; notices since the start; the last failure.
    alerts_firing: str = ""
    alerts_sent: Int64 = 0
    alerts_failed: Int64 = 0
    alerts_dropped: Int64 = 0
    alerts_last_error: str = ""
    #: Scheduled backups: `off`, `idle` or `running`; the last good one (0: never), the next one;
    #: failures since then, and the last one; for how long a good one has been missing.
    backup: str = ""
    backup_last_good: str = ""
    backup_last_good_at_ms: Int64 = 0
    backup_last_good_bytes: Int64 = 0
    backup_next_at_ms: Int64 = 0
    backup_failures_in_a_row: Int64 = 0
    backup_last_failed_at_ms: Int64 = 0
    backup_last_error: str = ""
    backup_overdue_ms: Int64 = 0


class PlanHeader(OwnHeader, frozen=True, kw_only=True):
    """PLAN_RANGES."""

    #: `transactions`: ranges of half offsets.  `log`: ranges of log offsets, for LIST_HALVES,
    #: LIST_OPS, LIST_CHECKS and LIST_EVENTS.
    what: Name = "transactions"
    #: What a range should have, about: undecided half messages, or bytes; 0 lets the broker say.
    weight: Int64 = 0


class ListTransactionsHeader(ListHeader, frozen=True, kw_only=True):
    """LIST_TRANSACTIONS."""

    #: Half offsets: from, and up to; -1 means to the end.
    start: Int64 = 0
    end: Int64 = -1
    #: Names of states, with commas between them.
    states: Name = "prepared,parked"
    #: Whether transaction ids are wanted.  They are read from the log.
    with_ids: bool = False
    #: Only this producer group's; empty for all.
    producer_group: Name = ""


class LogRangeHeader(ListHeader, frozen=True, kw_only=True):
    """LIST_HALVES, LIST_OPS, LIST_CHECKS and LIST_EVENTS."""

    #: Log offsets: from, and up to; -1 means to the end.  What begins between them is listed.
    start: Int64 = 0
    end: Int64 = -1


class LogRangeAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of the log's records."""

    #: What of the log could be read: from, and up to.
    log_start: Int64
    log_end: Int64
    #: Bytes of the log that begin in this page and say nothing: damaged, or lost by repair.
    unreadable_bytes: Int64 = 0


class ListQueuesHeader(PagedHeader, frozen=True, kw_only=True):
    """LIST_QUEUES."""

    #: Only this topic's, or these topics', with commas between them; empty for all.
    topic: NameList = ""
    #: Only the offsets that became visible at this time or later, and before that one; -1 for
    #: all.  They are searched for: pages are smaller.
    from_ms: Int64 = -1
    until_ms: Int64 = -1
    #: Only the offsets that were visible where the log ended here: the place of a frame; -1 for
    #: all.
    until_log: Int64 = -1


class ListQueuesAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of queues."""

    #: The log position that all ends belong to.
    log_end: Int64


class ReadMessagesHeader(PagedHeader, frozen=True, kw_only=True):
    """READ_MESSAGES."""

    topic: Name
    queue_id: Int32
    #: Queue offsets: from, and up to; -1 means to the end.  What retention has deleted is
    #: passed over.
    start: Int64 = 0
    end: Int64 = -1


class ReadMessagesAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of messages."""

    #: The queue's offsets: from, and up to.
    queue_start: Int64
    queue_end: Int64


class AwaitDueHeader(OwnHeader, frozen=True, kw_only=True):
    """AWAIT_DUE."""

    #: How long to wait for news, at most 25000; 0 for an answer at once.
    wait_ms: Int32 = 0
    #: Only checks that came due later than this are news: what the last answer said as `now_ms`.
    since_ms: Int64 = 0


class AwaitDueAnswer(OwnAnswer, frozen=True, kw_only=True):
    """AWAIT_DUE: all of it as of `now_ms`."""

    #: Undecided transactions whose next check is due.
    due: Int64
    #: When the next one comes due; absent if none does.
    next_due_at_ms: Int64 | None = None
    #: Transactions that are neither decided nor parked.
    undecided: Int64
    #: Those of them that are attempts of Spark sinks.
    sink_attempts: Int64
    #: Another number whenever a batch was decided, or an attempt of a new run was held.
    batches_decided: Int64
    #: Up to where the log can be read.
    log_end: Int64


class ListBatchesHeader(PagedHeader, frozen=True, kw_only=True):
    """LIST_BATCHES."""

    #: Only this app's; empty for all.
    app_id: Name = ""


# Writing.


class HoldHeader(OwnHeader, frozen=True, kw_only=True):
    """HOLD_HALVES."""

    producer_group: Name
    transaction_id: Name
    #: Of the transaction's requests, from 0 on: a repeat is answered as before, a gap refused.
    number: Int32
    #: An attempt of the Spark sink: the transaction has no limit, only each request.
    is_bulk: bool = False
    #: The UUID of the ledger table that knows the outcome; empty if there is none.
    ledger: Name = ""
    #: How long the sender may take to commit its own transaction.
    allowed_ms: Int64 = 0
    #: Age before the first back-check; absent: the policy's.  A message's own property goes first.
    check_after_ms: Int64 | None = None


class HoldAnswer(OwnAnswer, frozen=True, kw_only=True):
    """HOLD_HALVES."""

    #: The first of this request's half messages; any of them can be named to decide.
    half_offset: Int64
    #: They were held before this request.
    is_repeated: bool


class HoldManyHeader(OwnHeader, frozen=True, kw_only=True):
    """HOLD_MANY."""

    producer_group: Name
    ledger: Name = ""
    #: As for HOLD_HALVES.
    allowed_ms: Int64 = 0
    check_after_ms: Int64 | None = None


class ByHeader(OwnHeader, frozen=True, kw_only=True):
    """DECIDE_MANY."""

    #: Who decides, for the record; empty means the client's id or address.
    by: Name = ""
    #: The epoch that the half messages were held under, or the facts were read under.  What was
    #: meant for another history of the store is refused as `other_history`.
    epoch: Name = ""
    #: Where the log ended when the facts were read; -1 where each row names a log offset.
    log_end: Int64 = -1


# Administration.


class TopicFilterHeader(PagedHeader, frozen=True, kw_only=True):
    """LIST_OFFSETS."""

    #: Only this group's; empty for all.
    group: Name = ""
    #: Only this topic's; empty for all.
    topic: Name = ""


class TransactionHeader(PagedHeader, frozen=True, kw_only=True):
    """LIFE_LINE: one transaction, named in one of two ways."""

    #: Any of its half messages; -1 if the id is given.
    half_offset: Int64 = -1
    #: Of several with this id the newest is meant.
    transaction_id: Name = ""
    #: The caller leaves a mark when it sweeps a ledger.  Without this, a single event of a
    #: transaction with a ledger is refused: a caller of version 0.1.0 would sweep without a mark.
    leaves_marks: bool = False


class LifeLineAnswer(PagedAnswer, frozen=True, kw_only=True):
    """LIFE_LINE."""

    #: Its first half message.
    half_offset: Int64
    transaction_id: str
    producer_group: str
    ledger: str
    #: The name of its state.
    state: str
    checks_sent: Int32
    #: Undecided: when it is checked next, if it is.
    next_check_at_ms: Int64 | None = None
    #: Committed: when its first message became visible, if it has.
    visible_at_ms: Int64 | None = None
    #: Producers of its group that are online.
    producers_online: Int32
