"""Queue offsets: what exists, where to begin and end, and what each task reads.

Pure: ``queues.py`` makes the requests to brokers. A stream's checkpoint keeps offsets under the
brokers' names, so that a broker may move to another address.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from escrowmq.model.errors import RequestRefused

StreamOffsets = dict[str, dict[str, dict[str, int]]]
"""Offsets by broker, topic and queue, as in JSON, where a key is a string."""


class QueueKey(NamedTuple):
    """A queue of a broker."""

    broker: str
    topic: str
    queue_id: int


class OffsetRange(NamedTuple):
    """A range of queue offsets, ``[start, end)``."""

    start: int
    end: int


NOWHERE = OffsetRange(0, 0)


class QueueSlice(NamedTuple):
    """The part of one queue that a task reads."""

    queue: QueueKey
    start: int
    end: int


TASKS = 8
TASK_ROWS_MIN = 100_000
TASK_ROWS_MAX = 500_000
SIDE_BY_SIDE_MAX = 16
"""How many queues a task reads in turn, a page of each."""

Offsets = Mapping[QueueKey, int]
Spans = Mapping[QueueKey, OffsetRange]


def to_json(offsets: Offsets, brokers: Iterable[str] = ()) -> StreamOffsets:
    """The form that a checkpoint keeps. It includes `brokers` that have no queue yet."""
    kept: StreamOffsets = {broker: {} for broker in sorted(brokers)}
    for key in sorted(offsets):
        kept.setdefault(key.broker, {}).setdefault(key.topic, {})[str(key.queue_id)] = offsets[key]
    return kept


def from_json(kept: StreamOffsets) -> dict[QueueKey, int]:
    """The offsets that a checkpoint kept."""
    return {
        QueueKey(broker, topic, int(queue_id)): offset
        for broker, topics in kept.items()
        for topic, queues in topics.items()
        for queue_id, offset in queues.items()
    }


def begun(kept: StreamOffsets, there: Spans) -> dict[QueueKey, int]:
    """Where each queue is read from, including queues that are new.

    If the checkpoint knows the broker but not the queue, the queue is new and is read from its
    first message. A broker that the checkpoint does not know may be old, so its queues are read
    from the first message that still exists.
    """
    offsets = from_json(kept)
    more = {
        key: 0 if key.broker in kept else span.start
        for key, span in there.items()
        if key not in offsets
    }
    return {**offsets, **more}


class Loss(NamedTuple):
    """Messages that the read wanted and that do not exist."""

    queue: QueueKey
    #: The wanted range; the end is None if the read gave none.
    start: int
    end: int | None
    #: None if the queue no longer exists.
    there: OffsetRange | None

    def error(self) -> RequestRefused:
        """The error for this loss."""
        text = f"{self._cause()}; set failOnDataLoss=false to read the rest"
        return RequestRefused("data_lost", text, **self.facts())

    def _cause(self) -> str:
        if self.there is None:
            return "this read has no such queue: it was deleted, or its topic is not in the options"
        if max(self.start, self.end or 0) > self.there.end:
            return (
                "the queue ends before this offset: the offset is wrong, or the store or topic was"
                " recreated"
            )
        return "retention has deleted messages, or the store or topic was recreated"

    def facts(self) -> dict[str, object]:
        """The facts, for an error or the log."""
        facts = {"start": self.start, "end": self.end}
        if self.there is not None:
            facts |= {"there_start": self.there.start, "there_end": self.there.end}
        return {**self.queue._asdict(), **facts}


def losses(starts: Offsets, there: Spans, of_others: Container[str] = ()) -> list[Loss]:
    """Queues that cannot be read from these offsets.

    `of_others` are brokers for which the offsets are known to belong to another store.
    """
    return [
        Loss(key, start, None, there.get(key))
        for key, start in starts.items()
        if key not in there
        or not there[key].start <= start <= there[key].end
        or (key.broker in of_others and start > 0)
    ]


def readable(start: int, end: int, there: OffsetRange) -> OffsetRange:
    """The part of a range that exists.

    A range that ends before its start is of a recreated queue.
    """
    low = there.start if start > end else max(start, there.start)
    return OffsetRange(low, max(min(end, there.end), low))


def shared_out(starts: Offsets, ends: Offsets, rows_max: int) -> dict[QueueKey, int]:
    """Limit the ends to `rows_max` rows in total, divided among queues by their backlog."""
    backlogs = {key: max(end - starts.get(key, 0), 0) for key, end in ends.items()}
    total = sum(backlogs.values())
    if total <= rows_max:
        return dict(ends)
    given = {key: backlog * rows_max // total for key, backlog in backlogs.items()}
    left = rows_max - sum(given.values())
    # Queues that rounding cut most come first. Otherwise a small queue beside a large one would
    # never be read.
    for key in sorted(backlogs, key=lambda key: -(backlogs[key] * rows_max % total)):
        if left == 0:
            break
        if given[key] < backlogs[key]:
            given[key] += 1
            left -= 1
    return {key: starts.get(key, 0) + rows for key, rows in given.items()}


def task_rows(rows: int) -> int:
    """The rows of each task, for a read of this many rows whose options do not say.

    A task's overhead equals 15,000 rows, and a broker serves four tasks at full speed. Eight tasks
    are enough until each would take seconds.
    """
    return min(max(-(-rows // TASKS), TASK_ROWS_MIN), TASK_ROWS_MAX)


def packed(ranges: Iterable[QueueSlice], rows_max: int) -> Iterator[tuple[QueueSlice, ...]]:
    """Pack ranges into tasks of about `rows_max` rows, each of one broker.

    The queues of a topic grow together, so a task gets a share of each. Their messages are close
    together in the log, and the broker reads them together.
    """
    held: list[QueueSlice] = []
    rows = 0
    for group in side_by_side(ranges):
        starts = {one.queue: one.start for one in group}
        ends = {one.queue: one.end for one in group}
        while starts != ends:
            if held and (rows >= rows_max or held[-1].queue.broker != group[0].queue.broker):
                yield tuple(held)
                held, rows = [], 0
            stops = shared_out(starts, ends, rows_max - rows)
            more = [QueueSlice(queue, at, stops[queue]) for queue, at in starts.items()]
            held += [one for one in more if one.start < one.end]
            rows += sum(one.end - one.start for one in more)
            starts = stops
    if held:
        yield tuple(held)


def side_by_side(ranges: Iterable[QueueSlice]) -> Iterator[list[QueueSlice]]:
    """Group consecutive ranges of different queues of one topic, up to a limit per group."""
    group: list[QueueSlice] = []
    for one in ranges:
        if one.start >= one.end:
            continue
        is_other = bool(group) and group[0].queue[:2] != one.queue[:2]
        is_again = any(one.queue == other.queue for other in group)
        if is_other or is_again or len(group) >= SIDE_BY_SIDE_MAX:
            yield group
            group = []
        group.append(one)
    if group:
        yield group
