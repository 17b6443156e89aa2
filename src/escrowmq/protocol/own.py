"""Table of our own requests, for which RocketMQ's protocol has no codes.

They use the same port and the same frames. A request has its fields in the header and its rows in
the body, in the form that the header names (``own_forms``). The answer's rows have the same form.
The reference page is generated from this table.
"""

from __future__ import annotations

import msgspec

from escrowmq.protocol import own_hand_headers as hand_headers
from escrowmq.protocol import own_hand_rows as hand_rows
from escrowmq.protocol import own_headers as headers
from escrowmq.protocol import own_ledgers, own_log, own_previews, own_stored
from escrowmq.protocol import own_rows as rows
from escrowmq.protocol import own_sink_headers as sink_headers
from escrowmq.protocol.own_codes import FIRST_CODE, LAST_CODE, OwnCode, is_own
from escrowmq.protocol.own_forms import Row

__all__ = [
    "FIRST_CODE",
    "LAST_CODE",
    "OWN_REQUESTS",
    "PAGE_ROWS_MAX",
    "OwnCode",
    "OwnRequest",
    "is_own",
]

PAGE_ROWS_MAX = 10_000
"""Most rows in one page."""


class OwnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    code: OwnCode
    about: str
    header: type[headers.OwnHeader] = headers.OwnHeader
    rows: type[Row] | None = None
    #: Most rows in a request.
    rows_max: int = 0
    answer: type[headers.OwnAnswer] = headers.OwnAnswer
    answer_rows: type[Row] | None = None
    #: Most rows in an answer.
    answer_rows_max: int = 0
    #: Set if the answer's rows are blocks of numbers followed by bytes (``own_blocks``): describes
    #: these bytes.
    answer_bytes: str = ""
    #: Version of the columns of request and answer.
    version: int = 1
    #: Whether the request changes anything. If so, a lost answer leaves its outcome unknown.
    changes: bool = False

    @property
    def is_paged(self) -> bool:
        """Whether an answer may have a cursor."""
        return issubclass(self.answer, headers.PagedAnswer)


_TABLE = (
    OwnRequest(
        code=OwnCode.STATUS,
        about="How the broker is, what is undecided, and by which policy it is checked.",
        answer=headers.StatusAnswer,
    ),
    OwnRequest(
        code=OwnCode.PLAN_RANGES,
        about="Ranges that can be read at the same time, by several readers.",
        header=headers.PlanHeader,
        answer_rows=rows.RangeRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_TRANSACTIONS,
        about="Transactions by half offsets and states: the facts that the rules need.",
        header=headers.ListTransactionsHeader,
        answer=headers.PagedAnswer,
        answer_rows=rows.TransactionRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_HALVES,
        about="Half messages as the log has them, by log offsets.",
        header=headers.LogRangeHeader,
        answer=headers.LogRangeAnswer,
        answer_rows=rows.HalfRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_OPS,
        about="Decisions as the log has them, by log offsets.",
        header=headers.LogRangeHeader,
        answer=headers.LogRangeAnswer,
        answer_rows=rows.OpRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_CHECKS,
        about="Checks, and what was parked and resumed, as the log has them, by log offsets.",
        header=headers.LogRangeHeader,
        answer=headers.LogRangeAnswer,
        answer_rows=rows.CheckRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_QUEUES,
        about="Queues and their offsets, all at one position of the log.",
        header=headers.ListQueuesHeader,
        answer=headers.ListQueuesAnswer,
        answer_rows=rows.QueueRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.READ_MESSAGES,
        about="Visible messages of a queue, by queue offsets.",
        header=headers.ReadMessagesHeader,
        answer=headers.ReadMessagesAnswer,
        answer_rows=rows.MessageRow,
        answer_rows_max=1_024,
    ),
    OwnRequest(
        code=OwnCode.AWAIT_DUE,
        about="Wait until a check is due that nobody has heard of.",
        header=headers.AwaitDueHeader,
        answer=headers.AwaitDueAnswer,
    ),
    OwnRequest(
        code=OwnCode.LIST_BATCHES,
        about="Batches of Spark sinks that were decided.",
        header=headers.ListBatchesHeader,
        answer=headers.PagedAnswer,
        answer_rows=rows.BatchRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_EVENTS,
        about="All that happened to transactions, as the log has it, by log offsets.",
        header=headers.LogRangeHeader,
        answer=headers.LogRangeAnswer,
        answer_rows=rows.LogEventRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.READ_STORED,
        about="Visible messages of a queue, by queue offsets, as they were written.",
        header=own_stored.ReadStoredHeader,
        answer=own_stored.ReadStoredAnswer,
        answer_rows=rows.StoredEntryRow,
        answer_rows_max=16_384,
        answer_bytes=(
            "the records, one after the other, in RocketMQ's stored layout. A message that was a "
            "half message is as it was held: its queue offset and its visible time are the row's, "
            "and its transaction bits mean committed. Whoever reads a record compares its checksums"
        ),
    ),
    OwnRequest(
        code=OwnCode.FIND_ATTEMPTS,
        about="What became of attempts of a Spark sink, and whether its app id is known here.",
        header=sink_headers.FindAttemptsHeader,
        rows=rows.SoughtAttemptRow,
        rows_max=1_000,
        answer=sink_headers.FindAttemptsAnswer,
        answer_rows=rows.FoundAttemptRow,
        answer_rows_max=1_000,
    ),
    OwnRequest(
        code=OwnCode.READ_LOG,
        about="A stretch of the log, as it was written.",
        header=own_log.ReadLogHeader,
        answer=own_log.ReadLogAnswer,
        answer_rows=own_log.LogBlockRow,
        answer_rows_max=1,
        answer_bytes="frames of the log, the last of which may be cut off; the store's own layout",
    ),
    OwnRequest(
        code=OwnCode.LIST_NAMES,
        about=(
            "What the numbers in the log's records stand for. A number never stands for anything "
            "else; that of a queue goes with its topic."
        ),
        header=headers.PagedHeader,
        answer=headers.PagedAnswer,
        answer_rows=own_log.NameRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.PREVIEW_HALVES,
        about=(
            "Topic, keys, tags and the first bytes of the body of half messages, decided or not. "
            "A half message that the log no longer has gets no row."
        ),
        header=own_previews.PreviewHalvesHeader,
        rows=own_previews.SoughtHalfRow,
        rows_max=own_previews.TRANSACTIONS_MAX,
        answer=own_previews.PreviewHalvesAnswer,
        answer_rows=own_previews.PreviewRow,
        answer_rows_max=own_previews.PREVIEWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.HOLD_HALVES,
        about="Hold half messages of one transaction, for any topics, all or none.",
        header=headers.HoldHeader,
        rows=rows.SentRow,
        rows_max=32_767,
        answer=headers.HoldAnswer,
        answer_rows=rows.HeldRow,
        answer_rows_max=32_767,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.HOLD_MANY,
        about="Hold many transactions at once, each of which may be refused on its own.",
        header=headers.HoldManyHeader,
        rows=rows.SentInRow,
        rows_max=4_096,
        answer_rows=rows.HeldInRow,
        answer_rows_max=4_096,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.SEND_MANY,
        about="Store ordinary messages, for any topics, all or none.",
        rows=rows.SentRow,
        rows_max=32_767,
        answer_rows=rows.StoredRow,
        answer_rows_max=32_767,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.DECIDE_MANY,
        about="Commit or roll back many transactions, each answered with the truth about it.",
        header=headers.ByHeader,
        rows=rows.DecisionRow,
        rows_max=4_096,
        answer_rows=rows.DecidedRow,
        answer_rows_max=4_096,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.DECIDE_BATCH,
        about="Commit all attempts of a Spark batch at once, if it was not decided before.",
        header=sink_headers.DecideBatchHeader,
        rows=rows.AttemptRow,
        rows_max=10_000,
        answer=sink_headers.DecideBatchAnswer,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.OBEY_VERDICTS,
        about="Do what the pipeline says, where nothing has changed since it looked.",
        header=headers.ByHeader,
        rows=rows.VerdictRow,
        rows_max=32_768,
        answer_rows=rows.VerdictOutcomeRow,
        answer_rows_max=32_768,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.REPORT_LEDGERS,
        about=(
            "Say which configured ledgers a pipeline reaches, and why not the others. Later "
            "releases may append columns: readers ignore those that they do not know."
        ),
        header=own_ledgers.ReportLedgersHeader,
        rows=own_ledgers.LedgerReportRow,
        rows_max=own_ledgers.REPORTED_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_TOPICS,
        about="Topics, the system's too.",
        header=headers.PagedHeader,
        answer=headers.PagedAnswer,
        answer_rows=rows.TopicRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_GROUPS,
        about="Producer and consumer groups, and who is online of them.",
        header=headers.PagedHeader,
        answer=headers.PagedAnswer,
        answer_rows=rows.GroupRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.LIST_OFFSETS,
        about="How far consumer groups are.",
        header=headers.TopicFilterHeader,
        answer=headers.PagedAnswer,
        answer_rows=rows.OffsetRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.FIND_MESSAGES,
        about="Messages by key, newest first, or by any id, also if they are not visible yet.",
        header=own_previews.FindMessagesHeader,
        answer=own_previews.FindMessagesAnswer,
        answer_rows=rows.MessageRow,
        answer_rows_max=64,
    ),
    OwnRequest(
        code=OwnCode.LIFE_LINE,
        about="What happened to one transaction, and when.",
        header=headers.TransactionHeader,
        answer=headers.LifeLineAnswer,
        answer_rows=rows.EventRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
    OwnRequest(
        code=OwnCode.SETTLE,
        about="Decide one transaction by hand.",
        header=hand_headers.SettleHeader,
        answer=hand_headers.SettleAnswer,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.RESUME,
        about="Check a parked transaction again, from the first check.",
        header=hand_headers.ByHandHeader,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.COPY_META,
        about="Copy `meta.db`, which nobody else can read, beside itself: for a backup.",
        answer=hand_headers.CopyMetaAnswer,
    ),
    OwnRequest(
        code=OwnCode.DELETE_TOPIC,
        about="Delete a topic with all that is in it, also if something is undecided.",
        header=hand_headers.DeleteTopicHeader,
        answer=hand_headers.DeleteTopicAnswer,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.LIST_LEDGERS,
        about=(
            "Ledgers that pipelines reported, or that undecided transactions name. Columns may be "
            "appended, as for REPORT_LEDGERS."
        ),
        answer=own_ledgers.ListLedgersAnswer,
        answer_rows=own_ledgers.LedgerRow,
        answer_rows_max=own_ledgers.LISTED_MAX,
    ),
    OwnRequest(
        code=OwnCode.CONFIRM_CLOCK,
        about="Say that the broker's wall clock is right, though nobody else vouches for it.",
        header=hand_headers.ConfirmClockHeader,
        answer=hand_headers.ConfirmClockAnswer,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.PAUSE_GROUP,
        about="Pause or resume a consumer group; the broker keeps that over restarts.",
        header=hand_headers.PauseGroupHeader,
        answer=hand_headers.PauseGroupAnswer,
        changes=True,
    ),
    OwnRequest(
        code=OwnCode.LIST_PAUSED,
        about="Consumer groups that are paused.",
        header=headers.PagedHeader,
        answer=headers.PagedAnswer,
        answer_rows=hand_rows.PausedRow,
        answer_rows_max=PAGE_ROWS_MAX,
    ),
)

OWN_REQUESTS: dict[int, OwnRequest] = {request.code: request for request in _TABLE}
