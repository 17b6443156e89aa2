"""Fields of native requests and answers; the rows are in the body.

``requests.py`` says which fields belong to which request. The reference page shows a field's
comment.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name, NameList
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.remoting.headers import Header, Int32, Int64


class NativeHeader(Header, frozen=True, kw_only=True):
    """Fields of every request."""

    #: Encoding of the rows of the request and of the answer.
    form: RowForm = RowForm.MSGPACK
    #: Version of the columns of the request and of the answer.
    version: Int32 = 1


class NativeAnswer(Header, frozen=True, kw_only=True):
    """Fields of every answer."""

    form: RowForm = RowForm.MSGPACK
    version: Int32 = 1
    #: Rows in the body.
    row_count: Int32 = 0
    #: Store time of the answer.
    now_ms: Int64 = 0
    #: The broker's current epoch; empty from a release without a lineage.
    epoch: str = ""


class NativeRefusal(Header, frozen=True, kw_only=True):
    """Fields of a refusal. The remark has the error's text."""

    #: The error's code.
    error: str
    #: The error's class, which tells who must act.
    kind: str
    #: Milliseconds to wait before a retry; None if a retry cannot help.
    retry_after_ms: Int64 | None = None


class PagedHeader(NativeHeader, frozen=True, kw_only=True):
    """Fields of a request that is answered in pages."""

    #: Most rows in the answer; 0 means as many as the broker allows.
    limit: Int32 = 0
    #: The cursor of the previous page; empty for the first page.
    cursor: NameList = ""


class PagedAnswer(NativeAnswer, frozen=True, kw_only=True):
    """A page. It may have fewer rows than the limit, or none, without being the last page."""

    #: Cursor for the next page; absent on the last page.
    cursor: str | None = None


class ListHeader(PagedHeader, frozen=True, kw_only=True):
    """Fields of a request that may return very many rows."""

    #: Comma-separated names of the columns to return; empty for all. MessagePack rows always have
    #: all columns.
    columns: NameList = ""


# Facts.


class StatusAnswer(NativeAnswer, frozen=True, kw_only=True):
    """STATUS."""

    broker: str
    cluster: str
    broker_version: str
    broker_address: str
    started_at_ms: Int64
    #: Transactions that are neither decided nor parked.
    undecided: Int64
    #: Age of the oldest of them; 0 if there is none.
    oldest_undecided_age_ms: Int64
    #: Those of them without a ledger and without an online producer in their group.
    undecided_without_producer: Int64
    #: Parked transactions, which wait for an operator to decide.
    parked: Int64
    #: Back-checks sent to producers since the start.
    checks_sent: Int64
    #: Transactions with a request for the opposite of their decision since the start.
    contradictions: Int64
    #: When the pipeline last sent verdicts; 0 for never.
    last_verdict_at_ms: Int64
    #: Since when the pipeline has sent neither verdicts nor AWAIT_DUE; 0 if it is not away.
    pipeline_away_since_ms: Int64
    connections: Int32
    #: Group members, each counted once per group.
    producers_online: Int32
    consumers_online: Int32
    pulls_waiting: Int32
    topics: Int32
    queues: Int32
    #: Readable range of log offsets: start, and exclusive end.
    log_start: Int64
    log_end: Int64
    #: Range of known half offsets: start, and exclusive end.
    half_start: Int64
    half_end: Int64
    #: The back-check policy: settings of the section `[transaction]`.
    check_after_ms: Int64
    check_interval_ms: Int64
    check_backoff: float
    check_interval_max_ms: Int64
    checks_max: Int32
    park_after_ms: Int64
    #: `fsync` or `os`. Older releases omit this field and all fields after it.
    durability: str = ""
    #: What the free disk space allows: `all`, `no_messages`, `no_decisions` or `nothing`.
    disk: str = ""
    disk_free_bytes: Int64 = 0
    #: Median duration of the last 1000 flushes, and their 99th percentile.
    flush_ms_median: float = 0.0
    flush_ms_p99: float = 0.0
    #: The process's limit of open files.
    open_files_max: Int64 = 0
    #: The store's id and its epochs, each with its log offset, half offset and store time:
    #: `STORE/ID:LOG:HALF:TIME,…`.
    lineage: str = ""
    #: Why consumer offsets were lost before this start; empty if they were not.
    offsets_lost: str = ""
    #: Comma-separated topics of which only the queues were left at this start.
    topics_found: str = ""
    #: Kinds of names that use 80 % or more of their limit, with the counts; empty if none does.
    names_near: str = ""
    #: The settings `transaction.checked_by` and `transaction.after_last_check`.
    checked_by: str = "pipeline"
    after_last_check: str = "park"
    #: Which process checks undecided transactions now: `broker`, `pipeline` or `none`; and since
    #: when. Older releases never check by themselves.
    checker: str = "pipeline"
    checker_since_ms: Int64 = 0
    #: When the broker's own last round ended (0: never), how long it took, and what it did: as
    #: `asked=3 committed=1`, without counts that are 0.
    round_ended_at_ms: Int64 = 0
    round_took_ms: Int64 = 0
    round_did: str = ""
    #: Why the broker's own last round failed; empty if it did not.
    round_error: str = ""
    #: The machine's wall clock.
    wall_ms: Int64 = 0
    #: Whether the kernel reports the wall clock as synchronized.
    is_clock_synchronized: bool = False
    #: How far the wall clock is ahead of store time (`nowMs`); negative if behind.
    clock_gap_ms: Int64 = 0
    #: `none`, `ahead` (without confirmation that the wall clock is right) or `behind`.
    clock_gap: str = ""
    #: Whether a person should check the clock.
    is_clock_doubtful: bool = False
    #: Why the broker deletes nothing for its age (empty: it deletes), and how long, if known.
    deletion_waits: str = ""
    deletion_waits_ms: Int64 = 0
    #: State of retention: `idle`, `working`, `waits_for_room`, `waits_for_decisions` or
    #: `waits_for_permission`.
    retention: str = ""
    #: Disk space that retention lacks.
    retention_missing_bytes: Int64 = 0
    #: Bytes of messages that are undecided, parked or not yet due. They do not count against
    #: `retentionBytes`, the setting `store.retention_bytes`.
    undecided_bytes: Int64 = 0
    retention_bytes: Int64 = 0
    #: Part of the free bytes that the reserve holds.
    disk_reserve_bytes: Int64 = 0
    #: Pipelines whose ledger reports are valid now; LIST_LEDGERS lists the reported ledgers.
    pipelines_reporting: Int32 = 0
    #: Reported ledgers that their pipeline cannot reach.
    ledgers_unreachable: Int32 = 0
    #: Undecided transactions that name a ledger which no pipeline reaches; 0 without a report.
    undecided_without_ledger: Int64 = 0
    #: Paused consumer groups.
    groups_paused: Int64 = 0
    #: Pops that wait for a message, and messages in flight to groups that pop.
    pops_waiting: Int32 = 0
    pop_in_flight: Int64 = 0
    #: Whether the broker sends notices of alerts: `on` or `off`; empty from an older broker.
    alerts: str = ""
    #: Comma-separated alerts that are firing and were sent.
    alerts_firing: str = ""
    #: Notices since the start: sent, failed and dropped.
    alerts_sent: Int64 = 0
    alerts_failed: Int64 = 0
    alerts_dropped: Int64 = 0
    alerts_last_error: str = ""
    #: Scheduled backups: `off`, `idle` or `running`. The other fields describe the last good backup
    #: (0: never), the next one, the failures since then, and how long a good one is overdue.
    backup: str = ""
    backup_last_good: str = ""
    backup_last_good_at_ms: Int64 = 0
    backup_last_good_bytes: Int64 = 0
    backup_next_at_ms: Int64 = 0
    backup_failures_in_a_row: Int64 = 0
    backup_last_failed_at_ms: Int64 = 0
    backup_last_error: str = ""
    backup_overdue_ms: Int64 = 0
    #: The last comparison with the state store, as in LIST_COMPARISON; the time is 0 before it.
    compared_at_ms: Int64 = 0
    compared_outcome: str = ""
    compared_decided_before: Int64 = 0
    compared_log_offset: Int64 = 0
    compared_open: Int64 = 0
    compared_differences: Int64 = 0
    compared_first_difference: str = ""
    compared_state_store: str = ""
    #: The state store: its name, what it does, changes it has not seen, differences, the error.
    state_store: str = ""
    state_store_state: str = ""
    state_store_lag: Int64 = 0
    state_store_disagreed: Int64 = 0
    state_store_error: str = ""
    #: Every half message before this one is decided, says the state store; -1 if it was not asked.
    state_store_low_water: Int64 = -1


class PlanHeader(NativeHeader, frozen=True, kw_only=True):
    """PLAN_RANGES."""

    #: `transactions`: ranges of half offsets. `log`: ranges of log offsets, for LIST_HALVES,
    #: LIST_OPS, LIST_CHECKS and LIST_EVENTS.
    what: Name = "transactions"
    #: Approximate size of a range: undecided half messages, or bytes. 0 lets the broker choose.
    weight: Int64 = 0


class ListTransactionsHeader(ListHeader, frozen=True, kw_only=True):
    """LIST_TRANSACTIONS."""

    #: Range of half offsets: start, and exclusive end, where -1 means the end of the table.
    start: Int64 = 0
    end: Int64 = -1
    #: Comma-separated names of states.
    states: Name = "prepared,parked"
    #: Whether to return transaction ids, which the broker must read from the log.
    with_ids: bool = False
    #: Only this producer group; empty for all.
    producer_group: Name = ""


class LogRangeHeader(ListHeader, frozen=True, kw_only=True):
    """LIST_HALVES, LIST_OPS, LIST_CHECKS and LIST_EVENTS."""

    #: Range of log offsets: start, and exclusive end, where -1 means the end of the log. The answer
    #: lists the records that start in the range.
    start: Int64 = 0
    end: Int64 = -1


class LogRangeAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of the log's records."""

    #: Readable range of the log: start, and exclusive end.
    log_start: Int64
    log_end: Int64
    #: Bytes of unreadable stretches that start in this page: damaged, or lost in a repair.
    unreadable_bytes: Int64 = 0


class ListQueuesHeader(PagedHeader, frozen=True, kw_only=True):
    """LIST_QUEUES."""

    #: Comma-separated topics; empty for all.
    topic: NameList = ""
    #: Only offsets that became visible at `fromMs` or later and before `untilMs`; -1 for all. The
    #: broker must search for them, so pages are smaller.
    from_ms: Int64 = -1
    until_ms: Int64 = -1
    #: Only offsets that were visible when the log ended at this log offset, the start of a frame;
    #: -1 for all.
    until_log: Int64 = -1


class ListQueuesAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of queues."""

    #: The log offset to which the ends of all queues belong.
    log_end: Int64


class ReadMessagesHeader(PagedHeader, frozen=True, kw_only=True):
    """READ_MESSAGES."""

    topic: Name
    queue_id: Int32
    #: Range of queue offsets: start, and exclusive end, where -1 means the end of the queue. The
    #: broker skips messages that retention has deleted.
    start: Int64 = 0
    end: Int64 = -1


class ReadMessagesAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of messages."""

    #: The queue's range of offsets: start, and exclusive end.
    queue_start: Int64
    queue_end: Int64


class ListBatchesHeader(PagedHeader, frozen=True, kw_only=True):
    """LIST_BATCHES."""

    #: Only this app id; empty for all.
    app_id: Name = ""


# Writing.


class HoldManyHeader(NativeHeader, frozen=True, kw_only=True):
    """HOLD_MANY."""

    producer_group: Name
    #: The UUID of the ledger table that knows the outcome; empty if there is none.
    ledger: Name = ""
    #: How long the sender may take to commit its own transaction.
    allowed_ms: Int64 = 0
    #: Age before the first back-check; absent means the policy's. A message property overrides it.
    check_after_ms: Int64 | None = None


class HoldHeader(HoldManyHeader, frozen=True, kw_only=True):
    """HOLD_HALVES."""

    transaction_id: Name
    #: Number of this request in its transaction, starting at 0. A repeated number gets the same
    #: answer, and a gap is refused.
    number: Int32
    #: For an attempt of the Spark sink: only each request has a size limit, not the transaction.
    is_bulk: bool = False


class HoldAnswer(NativeAnswer, frozen=True, kw_only=True):
    """HOLD_HALVES."""

    #: Offset of this request's first half message. A decision may name any of them.
    half_offset: Int64
    #: They were already held before this request.
    is_repeated: bool


class ByHeader(NativeHeader, frozen=True, kw_only=True):
    """DECIDE_MANY."""

    #: Name of the decider for the log; empty means the client's id or address.
    by: Name = ""
    #: The epoch in which the half messages were held or the facts were read. The broker refuses
    #: rows for another history of the store as `other_history`.
    epoch: Name = ""
    #: End of the log when the facts were read; -1 if each row has a log offset.
    log_end: Int64 = -1


# Administration.


class TopicFilterHeader(PagedHeader, frozen=True, kw_only=True):
    """LIST_OFFSETS."""

    #: Only this group; empty for all.
    group: Name = ""
    #: Only this topic; empty for all.
    topic: Name = ""


class TransactionHeader(PagedHeader, frozen=True, kw_only=True):
    """LIFE_LINE: one transaction, identified by half offset or by id."""

    #: The offset of any of its half messages; -1 if the id is given.
    half_offset: Int64 = -1
    #: If several transactions have this id, the newest one is used.
    transaction_id: Name = ""
    #: The caller leaves a mark when it sweeps a ledger. If false, the broker refuses `limit` 1 for
    #: a transaction with a ledger, because a caller of version 0.1.0 would sweep without a mark.
    leaves_marks: bool = False


class LifeLineAnswer(PagedAnswer, frozen=True, kw_only=True):
    """LIFE_LINE."""

    #: Offset of its first half message.
    half_offset: Int64
    transaction_id: str
    producer_group: str
    ledger: str
    #: The name of its state.
    state: str
    checks_sent: Int32
    #: When the next check is due; absent if none is planned.
    next_check_at_ms: Int64 | None = None
    #: When its first message became visible; absent if it is not visible.
    visible_at_ms: Int64 | None = None
    #: Producers of its group that are online.
    producers_online: Int32
