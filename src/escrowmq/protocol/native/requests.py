"""Table of native requests, for which RocketMQ's protocol has no codes.

They use the same port and the same frames. A request has its fields in the header and its rows in
the body, in the form that the header names (``row_forms.py``). The answer's rows have the same
form. The reference page is generated from this table.
"""

from __future__ import annotations

from functools import partial

import msgspec

from escrowmq.protocol.native import (
    comparisons,
    headers,
    ledgers,
    pipeline_headers,
    previews,
    raw_log,
    rows,
    sink_headers,
    status_answer,
    stored_headers,
    user_headers,
)
from escrowmq.protocol.native import operator_headers as hand_headers
from escrowmq.protocol.native.codes import FIRST_CODE, LAST_CODE, NativeCode, is_native
from escrowmq.protocol.native.previews import PREVIEWS_MAX, TRANSACTIONS_MAX
from escrowmq.protocol.native.row_forms import NativeRow

__all__ = [
    "FIRST_CODE",
    "LAST_CODE",
    "NATIVE_REQUESTS",
    "PAGE_ROWS_MAX",
    "NativeCode",
    "NativeRequest",
    "is_native",
]

PAGE_ROWS_MAX = 10_000
"""Most rows in one page."""


class NativeRequest(msgspec.Struct, frozen=True):
    """One row of the table."""

    code: NativeCode
    about: str
    header: type[headers.NativeHeader] = headers.NativeHeader
    rows: type[NativeRow] | None = None
    #: Most rows in a request.
    rows_max: int = 0
    answer: type[headers.NativeAnswer] = headers.NativeAnswer
    answer_rows: type[NativeRow] | None = None
    #: Most rows in an answer, if it has rows.
    answer_rows_max: int = PAGE_ROWS_MAX
    #: Set if the answer's rows are blocks of numbers followed by bytes (``number_blocks.py``):
    #: describes these bytes.
    answer_bytes: str = ""
    #: Version of the columns of request and answer.
    version: int = 1
    #: Whether the request changes anything. If so, a lost answer leaves its outcome unknown.
    changes: bool = False


#: A request that changes something.
_change = partial(NativeRequest, changes=True)
#: A request for a range of the log.
_log_list = partial(NativeRequest, header=headers.LogRangeHeader, answer=headers.LogRangeAnswer)
#: A request for a list, which is answered in pages.
_paged_list = partial(NativeRequest, header=headers.PagedHeader, answer=headers.PagedAnswer)

_TABLE = (
    NativeRequest(
        NativeCode.STATUS,
        "The broker's status, its undecided transactions, and the policy of their checks.",
        answer=status_answer.StatusAnswer,
    ),
    NativeRequest(
        NativeCode.PLAN_RANGES,
        "Ranges that can be read at the same time, by several readers.",
        header=headers.PlanHeader,
        answer_rows=rows.RangeRow,
    ),
    _paged_list(
        NativeCode.LIST_TRANSACTIONS,
        "Transactions by half offsets and states: the facts that the rules need.",
        header=headers.ListTransactionsHeader,
        answer_rows=rows.TransactionRow,
    ),
    _log_list(
        NativeCode.LIST_HALVES,
        "Half messages in the log, by log offsets.",
        answer_rows=rows.HalfRow,
    ),
    _log_list(NativeCode.LIST_OPS, "Decisions in the log, by log offsets.", answer_rows=rows.OpRow),
    _log_list(
        NativeCode.LIST_CHECKS,
        "Checks, parkings and resumptions in the log, by log offsets.",
        answer_rows=rows.CheckRow,
    ),
    NativeRequest(
        NativeCode.LIST_QUEUES,
        "Queues and their offsets, all at one position of the log.",
        header=headers.ListQueuesHeader,
        answer=headers.ListQueuesAnswer,
        answer_rows=rows.QueueRow,
    ),
    NativeRequest(
        NativeCode.READ_MESSAGES,
        "Visible messages of a queue, by queue offsets.",
        header=headers.ReadMessagesHeader,
        answer=headers.ReadMessagesAnswer,
        answer_rows=rows.MessageRow,
        answer_rows_max=1_024,
    ),
    NativeRequest(
        NativeCode.AWAIT_DUE,
        "Wait until a check is due that the caller has not seen yet.",
        header=pipeline_headers.AwaitDueHeader,
        answer=pipeline_headers.AwaitDueAnswer,
    ),
    _paged_list(
        NativeCode.LIST_BATCHES,
        "Batches of Spark sinks that were decided.",
        header=headers.ListBatchesHeader,
        answer_rows=rows.BatchRow,
    ),
    _log_list(
        NativeCode.LIST_EVENTS,
        "All events of transactions in the log, by log offsets.",
        answer_rows=rows.LogEventRow,
    ),
    NativeRequest(
        NativeCode.READ_STORED,
        "Visible messages of a queue, by queue offsets, as they were written.",
        header=stored_headers.ReadStoredHeader,
        answer=stored_headers.ReadStoredAnswer,
        answer_rows=rows.StoredEntryRow,
        answer_rows_max=16_384,
        answer_bytes=(
            "the records, one after the other, in RocketMQ's stored layout. A message that was a "
            "half message is as it was held: its queue offset and its visible time are the row's, "
            "and its transaction bits mean committed. A reader compares the checksums of a record"
        ),
    ),
    NativeRequest(
        NativeCode.FIND_ATTEMPTS,
        "The outcomes of a Spark sink's attempts, and whether this broker knows its app id.",
        header=sink_headers.FindAttemptsHeader,
        rows=rows.SoughtAttemptRow,
        rows_max=1_000,
        answer=sink_headers.FindAttemptsAnswer,
        answer_rows=rows.FoundAttemptRow,
        answer_rows_max=1_000,
    ),
    NativeRequest(
        NativeCode.READ_LOG,
        "A range of the log, as raw bytes.",
        header=raw_log.ReadLogHeader,
        answer=raw_log.ReadLogAnswer,
        answer_rows=raw_log.LogBlockRow,
        answer_rows_max=1,
        answer_bytes="frames of the log, the last of which may be cut off; the store's own layout",
    ),
    _paged_list(
        NativeCode.LIST_NAMES,
        (
            "Names of the numbers in the log's records. A number never stands for anything "
            "else; the number of a queue ends with its topic."
        ),
        answer_rows=raw_log.NameRow,
    ),
    NativeRequest(
        NativeCode.PREVIEW_HALVES,
        (
            "Topic, keys, tags and the first bytes of the body of half messages, decided or not. "
            "A half message that the log no longer has gets no row."
        ),
        header=previews.PreviewHalvesHeader,
        rows=previews.SoughtHalfRow,
        rows_max=TRANSACTIONS_MAX,
        answer=previews.PreviewHalvesAnswer,
        answer_rows=previews.PreviewRow,
        answer_rows_max=PREVIEWS_MAX,
    ),
    NativeRequest(
        NativeCode.LIST_COMPARISON,
        (
            "The last comparison of half and op records with the state store that a pipeline "
            "reported: one row for each difference, or one row without any; no row before the "
            "first report."
        ),
        header=comparisons.ListComparisonHeader,
        answer=headers.PagedAnswer,
        answer_rows=comparisons.ComparisonRow,
        answer_rows_max=comparisons.DIFFERENCES_MAX,
    ),
    _paged_list(
        NativeCode.LIST_STATE_STORE,
        (
            "Undecided half messages as `mapped` or `sql` has them, for comparisons; refused if the"
            " state store is away or behind, or is the state table, which LIST_TRANSACTIONS lists."
        ),
        header=comparisons.ListStateStoreHeader,
        answer=comparisons.ListStateStoreAnswer,
        answer_rows=comparisons.StateStoreRow,
    ),
    _change(
        NativeCode.HOLD_HALVES,
        "Hold half messages of one transaction, for any topics, all or none.",
        header=headers.HoldHeader,
        rows=rows.SentRow,
        rows_max=32_767,
        answer=headers.HoldAnswer,
        answer_rows=rows.HeldRow,
        answer_rows_max=32_767,
    ),
    _change(
        NativeCode.HOLD_MANY,
        "Hold many transactions at once, each of which may be refused on its own.",
        header=headers.HoldManyHeader,
        rows=rows.SentInRow,
        rows_max=4_096,
        answer_rows=rows.HeldInRow,
        answer_rows_max=4_096,
    ),
    _change(
        NativeCode.SEND_MANY,
        "Store ordinary messages, for any topics, all or none.",
        rows=rows.SentRow,
        rows_max=32_767,
        answer_rows=rows.StoredRow,
        answer_rows_max=32_767,
    ),
    _change(
        NativeCode.DECIDE_MANY,
        "Commit or roll back many transactions. The answer gives the actual state of each.",
        header=headers.ByHeader,
        rows=rows.DecisionRow,
        rows_max=4_096,
        answer_rows=rows.DecidedRow,
        answer_rows_max=4_096,
    ),
    _change(
        NativeCode.DECIDE_BATCH,
        "Commit all attempts of a Spark batch at once, if it was not decided before.",
        header=sink_headers.DecideBatchHeader,
        rows=rows.AttemptRow,
        rows_max=10_000,
        answer=sink_headers.DecideBatchAnswer,
    ),
    _change(
        NativeCode.OBEY_VERDICTS,
        "Carry out verdicts of the pipeline on transactions"
        " that have not changed since it read them.",
        header=headers.ByHeader,
        rows=rows.VerdictRow,
        rows_max=32_768,
        answer_rows=rows.VerdictOutcomeRow,
        answer_rows_max=32_768,
    ),
    NativeRequest(
        NativeCode.REPORT_LEDGERS,
        (
            "Report which configured ledgers a pipeline can"
            " reach, and why it cannot reach the others. Later "
            "releases may append columns: readers ignore those that they do not know."
        ),
        header=ledgers.ReportLedgersHeader,
        rows=ledgers.LedgerReportRow,
        rows_max=ledgers.REPORTED_MAX,
    ),
    NativeRequest(
        NativeCode.PIPELINE_HEARTBEAT,
        "Tell the broker every 5 seconds that a pipeline is alive, and how its rounds go.",
        header=pipeline_headers.HeartbeatHeader,
        answer=pipeline_headers.HeartbeatAnswer,
    ),
    NativeRequest(
        NativeCode.REPORT_COMPARISON,
        "Report the pipeline's comparison of half and op records with the state store.",
        header=comparisons.ReportComparisonHeader,
        rows=comparisons.DifferenceRow,
        rows_max=comparisons.DIFFERENCES_MAX,
    ),
    _paged_list(
        NativeCode.LIST_TOPICS, "All topics, including system topics.", answer_rows=rows.TopicRow
    ),
    _paged_list(
        NativeCode.LIST_GROUPS,
        "Producer and consumer groups, and their clients that are online.",
        answer_rows=rows.GroupRow,
    ),
    _paged_list(
        NativeCode.LIST_OFFSETS,
        "The offsets of consumer groups.",
        header=headers.TopicFilterHeader,
        answer_rows=rows.OffsetRow,
    ),
    NativeRequest(
        NativeCode.FIND_MESSAGES,
        "Messages by key, newest first, or by any id, also if they are not visible yet.",
        header=previews.FindMessagesHeader,
        answer=previews.FindMessagesAnswer,
        answer_rows=rows.MessageRow,
        answer_rows_max=64,
    ),
    NativeRequest(
        NativeCode.LIFE_LINE,
        "The events of one transaction, with their times.",
        header=headers.TransactionHeader,
        answer=headers.LifeLineAnswer,
        answer_rows=rows.EventRow,
    ),
    _change(
        NativeCode.DECIDE_BY_HAND,
        "Decide one transaction by hand.",
        header=hand_headers.DecideByHandHeader,
        answer=hand_headers.DecideByHandAnswer,
    ),
    _change(
        NativeCode.RESUME,
        "Check a parked transaction again, from the first check.",
        header=hand_headers.ByHandHeader,
    ),
    NativeRequest(
        NativeCode.COPY_META,
        "Copy `meta.db`, which the broker locks, into a file beside it, for a backup.",
        answer=hand_headers.CopyMetaAnswer,
    ),
    _change(
        NativeCode.DELETE_TOPIC,
        "Delete a topic with all its messages, even if some are undecided.",
        header=hand_headers.DeleteTopicHeader,
        answer=hand_headers.DeleteTopicAnswer,
    ),
    NativeRequest(
        NativeCode.LIST_LEDGERS,
        (
            "Ledgers that pipelines reported, or that undecided transactions name. Columns may be "
            "appended, as for REPORT_LEDGERS."
        ),
        answer=ledgers.ListLedgersAnswer,
        answer_rows=ledgers.LedgerRow,
        answer_rows_max=ledgers.LISTED_MAX,
    ),
    _change(
        NativeCode.CONFIRM_CLOCK,
        "Confirm that the broker's wall clock is right when no second source does.",
        header=hand_headers.ConfirmClockHeader,
        answer=hand_headers.ConfirmClockAnswer,
    ),
    _change(
        NativeCode.PAUSE_GROUP,
        "Pause or resume a consumer group. A pause survives restarts.",
        header=hand_headers.PauseGroupHeader,
        answer=hand_headers.PauseGroupAnswer,
    ),
    _paged_list(
        NativeCode.LIST_PAUSED,
        "Consumer groups that are paused.",
        answer_rows=hand_headers.PausedRow,
    ),
    _change(
        NativeCode.USER_PUT,
        "Create a user of access control, or change it as a whole. The answer has a new secret.",
        header=user_headers.UserPutHeader,
        rows=user_headers.PolicyRow,
        rows_max=user_headers.POLICY_ROWS_MAX,
        answer=user_headers.UserPutAnswer,
    ),
    _change(
        NativeCode.USER_REMOVE,
        "Remove a user.",
        header=user_headers.UserRemoveHeader,
    ),
    _paged_list(
        NativeCode.USER_LIST,
        "Users and their policies, without secrets.",
        header=user_headers.ListUsersHeader,
        answer_rows=user_headers.UserRow,
        # A user takes up to 64 KiB.
        answer_rows_max=200,
    ),
    NativeRequest(
        NativeCode.ACL_EXPLAIN,
        "Whether a user may do something, and which policy decides.",
        header=user_headers.AclExplainHeader,
        answer=user_headers.AclExplainAnswer,
        answer_rows=user_headers.ConsideredRow,
    ),
)

NATIVE_REQUESTS: dict[int, NativeRequest] = {request.code: request for request in _TABLE}
