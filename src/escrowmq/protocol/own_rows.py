"""The columns of the rows that our own requests and their answers bring.

A field's comment is what the reference page says of the column.
"""

from __future__ import annotations

from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.limits import Name
from escrowmq.protocol.own_forms import Row

NO_CHECK_MS = 10**15
"""A wait of this length or longer means that no check is planned: it is over 30,000 years."""


class RangeRow(Row, frozen=True):
    """A range to read on its own."""

    #: From, and up to.
    start: Int64
    end: Int64
    #: Undecided half messages in it, or bytes of the log.
    weight: Int64


class TransactionRow(Row, frozen=True):
    """What the rules need to know of a transaction: one row each, under its first half message.

    Once it is decided each of its requests is a row, if it came in several.
    """

    half_offset: Int64
    #: The transaction's first half message: rows with the same one belong together.  Of a decided
    #: transaction the log knows it: it is null unless ids were asked for.
    head: Int64 | None
    #: Null unless ids were asked for.
    transaction_id: str | None
    producer_group: str
    #: The UUID of the ledger table that knows the outcome; empty if there is none.
    ledger: str
    #: How long the sender may take to commit its own transaction.
    allowed_ms: Int64
    #: The code of its state: 0 prepared, 1 committed, 2 rolled back, 3 parked.
    state: Int32
    stored_at_ms: Int64
    #: Since it was stored or, if it was parked, resumed; on the broker's clock.
    age_ms: Int64
    #: Until its next check; 0 and below when that is due, very high when there is none.
    wait_ms: Int64
    #: Back-checks that a live producer was sent.
    checks_sent: Int32
    #: In the row's request, once it is decided.
    message_count: Int64
    #: Producers of its group that are online.
    producers_online: Int32


class HalfRow(Row, frozen=True):
    """One request that brought half messages, as the log has it."""

    log_offset: Int64
    stored_at_ms: Int64
    #: The request's first half message, and the transaction's.
    first: Int64
    head: Int64
    message_count: Int32
    transaction_id: str
    producer_group: str
    ledger: str
    #: Of the transaction's requests; -1 from a stock client.
    number: Int64
    #: Retention or a late commit has carried it forward: it may have been listed before.
    is_copy: bool


class OpRow(Row, frozen=True):
    """Half messages that a decision decided; one row for each run of them."""

    log_offset: Int64
    decided_at_ms: Int64
    #: The transaction's first half message.
    head: Int64
    #: The run: its first half message, and how many.
    first: Int64
    message_count: Int32
    #: The code of the state: 1 committed, 2 rolled back.
    state: Int32
    decided_by: str
    #: Of a batch decision; null for any other.
    app_id: str | None
    batch_id: str | None
    #: A person decided it by force, whatever its ledger said.
    is_forced: bool


class CheckRow(Row, frozen=True):
    """Something that happened to an undecided transaction."""

    log_offset: Int64
    at_ms: Int64
    #: The transaction's first half message.
    head: Int64
    #: `asked`, `answered` (that it is not known), `parked` or `resumed`.
    event: str
    #: Which check; null where none is meant.
    checks_sent: Int32 | None
    #: The client that was asked or answered, who resumed it, or why it was parked.
    detail: str


class LogEventRow(Row, frozen=True):
    """Something that happened to transactions; what it does not have is null."""

    log_offset: Int64
    at_ms: Int64
    #: `held`, `carried` (forward, by retention or a late commit), `asked`, `answered`, `parked`,
    #: `resumed`, `committed`, `rolled_back`, `visible`, or `unreadable`: nobody knows what.
    event: str
    #: The transaction's first half message.
    head: Int64 | None
    #: The run of half messages that it is about: its first one, and how many.  A decision has a
    #: row for each run, `visible` one for each run of queue offsets.
    first: Int64 | None
    message_count: Int64 | None
    #: Of `held` and `carried`.
    transaction_id: str | None
    producer_group: str | None
    ledger: str | None
    #: Which of the transaction's requests; -1 from a stock client.
    number: Int64 | None
    #: Which check.
    checks_sent: Int32 | None
    #: Who decided or resumed it, was asked, or answered.
    by: str | None
    #: Why it was parked, why a check was answered so, which query decided it, or how many bytes
    #: cannot be read.
    detail: str | None
    #: Where it is visible, and the first of the queue offsets.
    topic: str | None
    queue_id: Int32 | None
    queue_offset: Int64 | None
    #: Of a batch decision.
    app_id: str | None
    batch_id: str | None


class QueueRow(Row, frozen=True):
    """A queue."""

    topic: str
    queue_id: Int32
    #: Queue offsets: from, and up to.
    start: Int64
    end: Int64
    #: The log offset at which its topic was made; one that was deleted and made again has another.
    born: Int64 = 0


class MessageRow(Row, frozen=True):
    """A message."""

    topic: str
    queue_id: Int32
    #: Null while it is not visible.
    queue_offset: Int64 | None
    log_offset: Int64
    message_id: str
    unique_key: str
    #: With blanks between them.
    keys: str
    tags: str
    body: bytes
    #: RocketMQ's property string: name, 0x01, value, 0x02, and so on.
    properties: str
    flag: Int32
    #: RocketMQ's bits; the lowest says that the body is compressed.
    sys_flag: Int32
    born_at_ms: Int64
    stored_at_ms: Int64
    #: Null while it is not visible.
    visible_at_ms: Int64 | None
    reconsume_times: Int32
    #: Null for a message that was never a half message.
    transaction_id: str | None


class BatchRow(Row, frozen=True):
    """A batch of a Spark sink that was decided."""

    app_id: str
    query_id: str
    #: Of a streaming query: the highest that was decided, and all below it were; else null.
    batch_number: Int64 | None
    #: Of a plain write; it is known as long as its decision is in the log.
    batch_name: str | None
    #: Where that decision is; null for a number, which outlives it.
    log_offset: Int64 | None


class StoredEntryRow(Row, frozen=True):
    """What is known of a stored message besides its record."""

    queue_offset: Int64
    visible_at_ms: Int64
    #: The CRC-32 of all of the record but its body, which has one of its own inside.
    crc: Int64
    #: Bytes of the record.
    size: Int32


class SentRow(Row, frozen=True):
    """A message to be stored."""

    topic: Name
    #: -1 lets the broker choose.
    queue_id: Int32
    body: bytes
    #: RocketMQ's property string, with keys, tags and unique key in it.
    properties: str
    flag: Int32
    #: RocketMQ's bits; the lowest says that the body is compressed.
    sys_flag: Int32
    born_at_ms: Int64


class SentInRow(Row, frozen=True):
    """A half message to be held; rows of one transaction stand together."""

    transaction_id: Name
    topic: Name
    #: -1 lets the broker choose.
    queue_id: Int32
    body: bytes
    #: RocketMQ's property string, with keys, tags and unique key in it.
    properties: str
    flag: Int32
    #: RocketMQ's bits; the lowest says that the body is compressed.
    sys_flag: Int32
    born_at_ms: Int64


class HeldRow(Row, frozen=True):
    """Where a half message is."""

    queue_id: Int32
    half_offset: Int64
    log_offset: Int64


class HeldInRow(Row, frozen=True):
    """How holding one transaction went."""

    transaction_id: str
    #: Its first half message, and where that is; null if it was refused.
    half_offset: Int64 | None
    log_offset: Int64 | None
    #: It was held before this request.
    is_repeated: bool
    #: The code of the refusal, and what it says.
    refused: str | None
    detail: str | None


class StoredRow(Row, frozen=True):
    """Where a message is."""

    queue_id: Int32
    #: -1 while it waits for its time.
    queue_offset: Int64
    log_offset: Int64


class DecisionRow(Row, frozen=True):
    """A decision to be made."""

    #: Any half message of the transaction.
    half_offset: Int64
    #: `commit`, `rollback` or `unknown`.
    resolution: Name
    #: Checked if it is given.
    producer_group: Name | None
    log_offset: Int64 | None


class DecidedRow(Row, frozen=True):
    """How it stands with one transaction, in the order of the request."""

    half_offset: Int64
    #: `committed` or `rolled_back`, whoever decided it; null if it is not decided.
    decided: str | None
    decided_by: str | None
    decided_at_ms: Int64 | None
    #: It had been decided before this request.
    is_repeated: bool
    #: The code of the refusal, and what it says.
    refused: str | None
    detail: str | None


class AttemptRow(Row, frozen=True):
    """What the Spark driver knows of one task's attempt."""

    transaction_id: Name
    #: The number of its last request, and how many messages it has.
    last_number: Int32
    messages: Int64


class SoughtAttemptRow(Row, frozen=True):
    """An attempt of a Spark sink that somebody asks about."""

    #: Its first half message.
    half_offset: Int64
    transaction_id: Name


class FoundAttemptRow(Row, frozen=True):
    """What became of an attempt, in the order of the request."""

    half_offset: Int64
    #: The name of its state; null if there is no such attempt, or the log has it no more.
    state: str | None
    #: While it is undecided: the number of its last request, and how many messages it has.
    last_number: Int32 | None
    messages: Int64 | None


class VerdictRow(Row, frozen=True):
    """The pipeline's word on one transaction."""

    half_offset: Int64
    #: `commit`, `rollback`, `ask` or `park`.
    verdict: Name
    #: The version that it was computed from: the code of the state, and the checks sent.
    state: Int32
    checks_sent: Int32
    #: Why it is to be parked; null for any other verdict.
    reason: str | None


class VerdictOutcomeRow(Row, frozen=True):
    """What became of a verdict, in the order of the request."""

    half_offset: Int64
    #: `committed`, `rolled_back`, `parked`, `asked`, `no_producer`, `busy`, `stale` or `refused`.
    outcome: str


class TopicRow(Row, frozen=True):
    """A topic."""

    topic: str
    read_queue_count: Int32
    write_queue_count: Int32
    #: RocketMQ's bits: 4 read, 2 write, 1 lends its settings to new topics.
    perm: Int32
    message_type: str
    is_system: bool
    created_at_ms: Int64


class GroupRow(Row, frozen=True):
    """A member of a group; a consumer group without anybody online is one row without one."""

    group: str
    #: `producer` or `consumer`.
    role: str
    client_id: str | None
    address: str | None
    language: str | None
    heard_at_ms: Int64 | None


class OffsetRow(Row, frozen=True):
    """How far a group is in a queue."""

    group: str
    topic: str
    queue_id: Int32
    #: The next message that it will read, and the queue's end.
    offset: Int64
    end: Int64
    #: Messages between them.
    lag: Int64


class EventRow(Row, frozen=True):
    """Something that happened to a transaction."""

    at_ms: Int64
    #: `held`, `asked`, `answered`, `parked`, `resumed`, `committed`, `rolled_back` or `visible`.
    event: str
    log_offset: Int64
    #: By whom, or who was asked.
    by: str
    #: Which check, why, or where and how many.
    detail: str
