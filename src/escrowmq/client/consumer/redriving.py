"""Sends dead letters again, each exactly once.

A dead letter is sent as the only message of a transaction whose id is made from the letter's id.
That id finds the earlier transaction for as long as the letter exists, because retention deletes
the letter first. The broker holds and commits a transaction once, however often it is told to
(``store.id_window_ms``). So two concurrent commands, or a command that died and was run again, send
nothing twice: the second command completes what the first began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.model.refused_states import already
from escrowmq.model.topic_names import DLQ_PREFIX, RETRY_PREFIX
from escrowmq.protocol.message.properties import (
    DELAYS,
    PGROUP,
    RETRY_TOPIC,
    TRAN_MSG,
    TRANSACTION_ID,
    format_properties,
    parse_properties,
)
from escrowmq.protocol.native.headers import (
    ByHeader,
    HoldManyHeader,
    ListQueuesHeader,
    ReadMessagesHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import DecisionRow, SentInRow

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.rows import MessageRow

PRODUCER_GROUP = "escrowmq-redrive"
#: The time to decide that a hold request states. No producer of this group answers back-checks:
#: the same command, run again, or an operator decides a transaction that stays undecided.
ALLOWED_MS = 60_000
#: Maximum number of letters, and of their bytes, in one request.
LETTERS_MAX = 64
BYTES_MAX = 8 * 1024 * 1024

_UNKNOWN = ("transaction_unknown", "no_such_half_message")
#: The state of a transaction that has sent its letter.
_COMMITTED = "committed"
SENT = frozenset({"sent", "sent before"})
"""Outcomes of letters that were not refused."""
#: Properties of the first sending that the new message must not repeat.
_DROPPED = (*DELAYS, PGROUP, TRAN_MSG, TRANSACTION_ID)


class RedriveTarget(StrEnum):
    """The consumers that get a letter again."""

    #: Only the consumer group that gave the letter up, through its retry topic.
    GROUP = "group"
    #: Every group of the topic that the letter was first sent to.
    TOPIC = "topic"


class RedrivenLetter(NamedTuple):
    """The outcome for one letter."""

    message_id: str
    topic: str
    #: ``sent``, ``sent before``, or the code of a refusal.
    outcome: str
    detail: str = ""


def letters(calls: NativeCalls, group: str) -> Iterator[MessageRow]:
    """Yield the dead letters of a group, the oldest of each queue first.

    Raises:
        RequestRefused: ``topic_unknown``: the group has never had a dead letter.
    """
    topic = f"{DLQ_PREFIX}{group}"
    queues = list(calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(topic=topic)))
    if not queues:
        raise RequestRefused("topic_unknown", "escrowmq dlq list shows all", topic=topic)
    for queue in queues:
        asked = ReadMessagesHeader(
            topic=topic, queue_id=queue.queue_id, start=queue.start, end=queue.end
        )
        yield from calls.rows(NativeCode.READ_MESSAGES, asked)


def first_topic(letter: MessageRow) -> str:
    """Return the topic that the letter was first sent to."""
    return parse_properties(letter.properties.encode()).get(RETRY_TOPIC, "")


def transaction_of(letter: MessageRow) -> str:
    """Return the id of the transaction that sends the letter again."""
    return f"redrive-{letter.message_id}"


def was_sent(calls: NativeCalls, letter: MessageRow) -> bool:
    """Return whether the letter was already sent again."""
    named = TransactionHeader(transaction_id=transaction_of(letter), limit=1)
    try:
        told = calls.call(NativeCode.LIFE_LINE, named).header
    except RequestRefused as refused:
        if refused.code in _UNKNOWN:
            return False
        raise
    return bool(told.state == _COMMITTED)


def redrive(
    calls: NativeCalls, found: Iterator[MessageRow], group: str, target: RedriveTarget, by: str
) -> Iterator[RedrivenLetter]:
    """Send letters again, in batches of at most ``LETTERS_MAX``."""
    for portion in _portions(found):
        unsent = []
        for letter in portion:
            if was_sent(calls, letter):
                topic = target_topic(letter, group, target)
                yield RedrivenLetter(letter.message_id, topic, "sent before")
            else:
                unsent.append(letter)
        if unsent:
            yield from _redrive(calls, unsent, group, target, by)


def target_topic(letter: MessageRow, group: str, target: RedriveTarget) -> str:
    """Return the topic that a letter is sent to."""
    return f"{RETRY_PREFIX}{group}" if target is RedriveTarget.GROUP else first_topic(letter)


def _portions(found: Iterator[MessageRow]) -> Iterator[list[MessageRow]]:
    portion: list[MessageRow] = []
    size = 0
    for letter in found:
        if portion and (len(portion) == LETTERS_MAX or size + len(letter.body) > BYTES_MAX):
            yield portion
            portion, size = [], 0
        portion.append(letter)
        size += len(letter.body)
    if portion:
        yield portion


def _redrive(
    calls: NativeCalls, some: Sequence[MessageRow], group: str, target: RedriveTarget, by: str
) -> Iterator[RedrivenLetter]:
    header = HoldManyHeader(producer_group=PRODUCER_GROUP, allowed_ms=ALLOWED_MS)
    rows = [_row(letter, target_topic(letter, group, target), target) for letter in some]
    held = calls.call(NativeCode.HOLD_MANY, header, rows).rows
    commits = [
        DecisionRow(
            half_offset=one.half_offset, resolution="commit", producer_group=None, log_offset=None
        )
        for one in held
        if one.half_offset is not None
    ]
    ends = iter(
        calls.call(NativeCode.DECIDE_MANY, ByHeader(by=by), commits).rows if commits else ()
    )
    for letter, row, one in zip(some, rows, held, strict=True):
        refused, detail = one.refused, one.detail
        if one.half_offset is not None:
            (end,) = islice(ends, 1)
            refused, detail = end.refused, end.detail
        outcome = "sent before" if refused == already(_COMMITTED) else refused or "sent"
        yield RedrivenLetter(letter.message_id, row.topic, outcome, detail or "")


def _row(letter: MessageRow, topic: str, target: RedriveTarget) -> SentInRow:
    properties = parse_properties(letter.properties.encode())
    for name in _DROPPED:
        properties.pop(name, None)
    if target is RedriveTarget.TOPIC:
        properties.pop(RETRY_TOPIC, None)
    return SentInRow(
        transaction_id=transaction_of(letter),
        topic=topic,
        queue_id=-1,
        body=letter.body,
        properties=format_properties(properties).decode(),
        flag=letter.flag,
        sys_flag=letter.sys_flag,
        born_at_ms=letter.born_at_ms,
    )
