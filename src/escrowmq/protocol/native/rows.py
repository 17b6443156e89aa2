"""Columns of the rows of native requests and answers.

The reference page shows a field's comment as the description of its column.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int32, Int64

NO_CHECK_MS = 10**15
"""A wait of this length (over 30,000 years) or longer means that no check is planned."""


class RangeRow(NativeRow, frozen=True):
    """A range that one reader can read independently."""

    #: Start, and exclusive end.
    start: Int64
    end: Int64
    #: Undecided half messages in the range, or bytes of the log.
    weight: Int64


class TransactionRow(NativeRow, frozen=True):
    """The facts about a transaction that the rules need: one row at its first half message.

    A decided transaction has a row for each request that brought half messages.
    """

    half_offset: Int64
    #: Offset of the transaction's first half message, the same in all its rows. For a decided
    #: transaction it is null unless the request asks for ids, because it must be read from the log.
    head: Int64 | None
    #: Null unless the request asks for ids.
    transaction_id: str | None
    producer_group: str
    #: The UUID of the ledger table that knows the outcome; empty if there is none.
    ledger: str
    #: How long the sender may take to commit its own transaction.
    allowed_ms: Int64
    #: The code of its state: 0 prepared, 1 committed, 2 rolled back, 3 parked.
    state: Int32
    stored_at_ms: Int64
    #: Store time since it was stored or, if it was parked, since it was resumed.
    age_ms: Int64
    #: Time until its next check: 0 or negative if it is due, very high if none is planned.
    wait_ms: Int64
    #: Back-checks that were sent to a live producer.
    checks_sent: Int32
    #: Messages in the transaction or, once it is decided, in the row's request.
    message_count: Int64
    #: Producers of its group that are online.
    producers_online: Int32


class HalfRow(NativeRow, frozen=True):
    """One request that brought half messages, from the log."""

    log_offset: Int64
    stored_at_ms: Int64
    #: Offset of the request's first half message.
    first: Int64
    #: Offset of the transaction's first half message.
    head: Int64
    message_count: Int32
    transaction_id: str
    producer_group: str
    ledger: str
    #: Number of the request in its transaction; -1 from a stock client.
    number: Int64
    #: Retention carried it forward, or a late commit copied it. It may have been listed before.
    is_copy: bool


class OpRow(NativeRow, frozen=True):
    """One run of consecutive half messages of a decision."""

    log_offset: Int64
    decided_at_ms: Int64
    #: Offset of the transaction's first half message.
    head: Int64
    #: The run: offset of its first half message, and its length.
    first: Int64
    message_count: Int32
    #: The code of the state: 1 committed, 2 rolled back.
    state: Int32
    decided_by: str
    #: Null unless a batch decision decided it.
    app_id: str | None
    batch_id: str | None
    #: A person decided it by force, regardless of its ledger.
    is_forced: bool


class CheckRow(NativeRow, frozen=True):
    """An event of an undecided transaction."""

    log_offset: Int64
    at_ms: Int64
    #: Offset of the transaction's first half message.
    head: Int64
    #: `asked`, `answered` (with `UNKNOWN`), `parked` or `resumed`.
    event: str
    #: Number of the check; null for `parked` and `resumed`.
    checks_sent: Int32 | None
    #: The client that was asked or answered, the person who resumed it, or the reason for parking.
    detail: str


class LogEventRow(NativeRow, frozen=True):
    """An event of transactions. Columns that do not apply to the event are null."""

    log_offset: Int64
    at_ms: Int64
    #: `held`, `carried` (forward by retention, or copied by a late commit), `asked`, `answered`,
    #: `parked`, `resumed`, `committed`, `rolled_back`, `visible`, `recalled`, or `unreadable`.
    event: str
    #: Offset of the transaction's first half message.
    head: Int64 | None
    #: The run of half messages: offset of the first one, and its length. A decision has a row for
    #: each run, and `visible` has one for each run of queue offsets.
    first: Int64 | None
    message_count: Int64 | None
    #: For `held` and `carried`.
    transaction_id: str | None
    producer_group: str | None
    ledger: str | None
    #: Number of the request in its transaction; -1 from a stock client.
    number: Int64 | None
    #: Number of the check.
    checks_sent: Int32 | None
    #: The decider, the person who resumed it, or the client that was asked or answered.
    by: str | None
    #: The reason for parking, the reason for a check's answer, the query that decided it, or the
    #: number of unreadable bytes.
    detail: str | None
    #: For `visible`: the topic, the queue, and the first queue offset.
    topic: str | None
    queue_id: Int32 | None
    queue_offset: Int64 | None
    #: For a batch decision.
    app_id: str | None
    batch_id: str | None


class QueueRow(NativeRow, frozen=True):
    """A queue."""

    topic: str
    queue_id: Int32
    #: Range of queue offsets: start, and exclusive end.
    start: Int64
    end: Int64
    #: The log offset at which its topic was made. A topic that is made again has another one.
    born: Int64 = 0


class MessageRow(NativeRow, frozen=True):
    """A message."""

    topic: str
    queue_id: Int32
    #: Null until it is visible.
    queue_offset: Int64 | None
    log_offset: Int64
    message_id: str
    unique_key: str
    #: Separated by spaces.
    keys: str
    tags: str
    body: bytes
    #: RocketMQ's property string: name, 0x01, value, 0x02, and so on.
    properties: str
    flag: Int32
    #: RocketMQ's bits. The lowest bit is set if the body is compressed.
    sys_flag: Int32
    born_at_ms: Int64
    stored_at_ms: Int64
    #: Null until it is visible.
    visible_at_ms: Int64 | None
    reconsume_times: Int32
    #: Null for a message that was never a half message.
    transaction_id: str | None


class BatchRow(NativeRow, frozen=True):
    """A decided batch of a Spark sink."""

    app_id: str
    query_id: str
    #: The highest number that a streaming query decided, after all lower ones; else null.
    batch_number: Int64 | None
    #: The name of a plain write, which is known as long as its decision is in the log.
    batch_name: str | None
    #: Log offset of that decision; null for a number, which is known longer than its decision.
    log_offset: Int64 | None


class StoredEntryRow(NativeRow, frozen=True):
    """Index entry of a stored message."""

    queue_offset: Int64
    visible_at_ms: Int64
    #: CRC-32 of the record without its body, which has its own CRC-32 in the record.
    crc: Int64
    #: Size of the record in bytes.
    size: Int32


class SentRow(NativeRow, frozen=True):
    """A message to be stored."""

    topic: Name
    #: -1 lets the broker choose.
    queue_id: Int32
    body: bytes
    #: RocketMQ's property string, with keys, tags and unique key in it.
    properties: str
    flag: Int32
    #: RocketMQ's bits. The lowest bit is set if the body is compressed.
    sys_flag: Int32
    born_at_ms: Int64


class SentInRow(NativeRow, frozen=True):
    """A half message to be held. The rows of one transaction must be adjacent."""

    transaction_id: Name
    topic: Name
    #: -1 lets the broker choose.
    queue_id: Int32
    body: bytes
    #: RocketMQ's property string, with keys, tags and unique key in it.
    properties: str
    flag: Int32
    #: RocketMQ's bits. The lowest bit is set if the body is compressed.
    sys_flag: Int32
    born_at_ms: Int64


class HeldRow(NativeRow, frozen=True):
    """The location of a half message."""

    queue_id: Int32
    half_offset: Int64
    log_offset: Int64


class HeldInRow(NativeRow, frozen=True):
    """The result of holding one transaction."""

    transaction_id: str
    #: Half offset and log offset of its first half message; null if it was refused.
    half_offset: Int64 | None
    log_offset: Int64 | None
    #: It was already held before this request.
    is_repeated: bool
    #: Code and text of the refusal.
    refused: str | None
    detail: str | None


class StoredRow(NativeRow, frozen=True):
    """The location of a message."""

    queue_id: Int32
    #: -1 until a scheduled message is due.
    queue_offset: Int64
    log_offset: Int64


class DecisionRow(NativeRow, frozen=True):
    """A decision to be made."""

    #: Offset of any half message of the transaction.
    half_offset: Int64
    #: `commit`, `rollback` or `unknown`.
    resolution: Name
    #: The broker checks producer group and log offset if they are given.
    producer_group: Name | None
    log_offset: Int64 | None


class DecidedRow(NativeRow, frozen=True):
    """The state of one transaction, in the order of the request."""

    half_offset: Int64
    #: `committed` or `rolled_back`, by this or an earlier decision; null if it is undecided.
    decided: str | None
    decided_by: str | None
    decided_at_ms: Int64 | None
    #: It was already decided before this request.
    is_repeated: bool
    #: Code and text of the refusal.
    refused: str | None
    detail: str | None


class AttemptRow(NativeRow, frozen=True):
    """The Spark driver's facts about one task's attempt."""

    transaction_id: Name
    #: The number of its last request, and the number of its messages.
    last_number: Int32
    messages: Int64


class SoughtAttemptRow(NativeRow, frozen=True):
    """An attempt of a Spark sink to look up."""

    #: Offset of its first half message.
    half_offset: Int64
    transaction_id: Name


class FoundAttemptRow(NativeRow, frozen=True):
    """The state of an attempt, in the order of the request."""

    half_offset: Int64
    #: The name of its state; null if there is no such attempt, or the log no longer has it.
    state: str | None
    #: The number of its last request, and the number of its messages; null once it is decided.
    last_number: Int32 | None
    messages: Int64 | None


class VerdictRow(NativeRow, frozen=True):
    """The pipeline's verdict on one transaction."""

    half_offset: Int64
    #: `commit`, `rollback`, `ask` or `park`.
    verdict: Name
    #: The version it was computed from: the code of the state, and the number of checks sent.
    state: Int32
    checks_sent: Int32
    #: The reason for parking; null for any other verdict.
    reason: str | None


class VerdictOutcomeRow(NativeRow, frozen=True):
    """The outcome of a verdict, in the order of the request."""

    half_offset: Int64
    #: `committed`, `rolled_back`, `parked`, `asked`, `no_producer`, `busy`, `stale` or `refused`.
    outcome: str


class TopicRow(NativeRow, frozen=True):
    """A topic."""

    topic: str
    read_queue_count: Int32
    write_queue_count: Int32
    #: RocketMQ's bits: 4 read, 2 write, 1 new topics may inherit its settings.
    perm: Int32
    message_type: str
    is_system: bool
    created_at_ms: Int64


class GroupRow(NativeRow, frozen=True):
    """A group member. A consumer group without online members has one row with nulls."""

    group: str
    #: `producer` or `consumer`.
    role: str
    client_id: str | None
    address: str | None
    language: str | None
    heard_at_ms: Int64 | None


class OffsetRow(NativeRow, frozen=True):
    """Progress of a consumer group in a queue."""

    group: str
    topic: str
    queue_id: Int32
    #: The next queue offset that the group will read, and the queue's end.
    offset: Int64
    end: Int64
    #: Messages that are not acknowledged; of those, delivered by pop and not visible again.
    lag: Int64
    in_flight: Int64 = 0


class EventRow(NativeRow, frozen=True):
    """An event of a transaction."""

    at_ms: Int64
    #: `held`, `asked`, `answered`, `parked`, `resumed`, `committed`, `rolled_back` or `visible`.
    event: str
    #: Offset of its record in the broker's log.
    log_offset: Int64
    #: The client or operator that caused it, or the producer that was asked.
    by: str
    #: The check's number, the reason, or the queue and offsets, depending on the event.
    detail: str
