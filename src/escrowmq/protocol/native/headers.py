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
