"""Compares consumers' progress with the queues: no group can be past the end of a queue.

A group that has messages in flight is not stuck: a consumer has them. The driver makes the
requests. There is one row for each queue of each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.pins import Pin
from escrowmq.pipeline.audit.report import Case
from escrowmq.protocol.native.headers import ReadMessagesHeader, TopicFilterHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import OffsetRow

LOOKED_AT_MAX = 10_000
"""How many queues have their next message examined, over all groups of one broker."""


@dataclass
class ExaminedGroups:
    """How much progress was examined."""

    groups: set[str]
    queues: int = 0
    left_out: int = 0


def progress_cases(
    pins: Sequence[Pin], topics: Sequence[str], stuck_ms: int, seen: ExaminedGroups
) -> Iterator[tuple[FindingName, Case]]:
    """Yield the findings; ``seen`` counts what was examined."""
    for pin in pins:
        with NativeCalls(pin.address) as calls:
            looked_at = 0
            for row in calls.rows(NativeCode.LIST_OFFSETS, TopicFilterHeader()):
                if topics and row.topic not in topics:
                    continue
                seen.groups.add(row.group)
                seen.queues += 1
                if row.offset > row.end:
                    yield FindingName.OFFSET_BEYOND_END, _case(pin, row)
                elif row.offset < row.end and not row.in_flight:
                    looked_at += 1
                    if looked_at > LOOKED_AT_MAX:
                        seen.left_out += 1
                        continue
                    waits_ms = _waits_ms(calls, row)
                    if waits_ms > stuck_ms:
                        yield FindingName.CONSUMER_STUCK, _case(pin, row, waits_ms)


def _waits_ms(calls: NativeCalls, row: OffsetRow) -> int:
    """How long the group's next message has been visible; 0 if there is none."""
    header = ReadMessagesHeader(topic=row.topic, queue_id=row.queue_id, start=row.offset, limit=1)
    answer = calls.call(NativeCode.READ_MESSAGES, header)
    visible = [one.visible_at_ms for one in answer.rows]
    return answer.header.now_ms - visible[0] if visible and visible[0] is not None else 0


def _case(pin: Pin, row: OffsetRow, waits_ms: int = 0) -> Case:
    place = f"group {row.group}, {row.topic}, queue {row.queue_id}"
    where = f"its offset is {row.offset}, the queue's end {row.end}"
    waits = (
        f"its next message has been visible for {waits_ms // 60_000} minutes" if waits_ms else ""
    )
    return Case(
        broker=pin.name,
        at_ms=pin.status.now_ms,
        detail="; ".join(filter(None, (place, where, waits))),
    )
