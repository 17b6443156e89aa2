"""Offsets of queues: what there is, where to begin and to end, and what of it each task reads.

Pure: brokers are asked by ``queues.py``.  Offsets of a stream are kept in its checkpoint under the
brokers' names, so that a broker may move to another address.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from escrowmq.model.errors import RequestRefused

StreamOffsets = dict[str, dict[str, dict[str, int]]]
"""By broker, topic and queue; as JSON has it, in which a key is a text."""


class QueueKey(NamedTuple):
    """A queue of a broker."""

    broker: str
    topic: str
    queue_id: int


class Span(NamedTuple):
    """Queue offsets: from, and up to."""

    start: int
    end: int


NOWHERE = Span(0, 0)


class Range(NamedTuple):
    """What a task reads of one queue."""

    queue: QueueKey
    start: int
    end: int


TASKS = 8
TASK_ROWS_MIN = 100_000
TASK_ROWS_MAX = 500_000
SIDE_BY_SIDE_MAX = 16
"""Queues that a task reads in turn, a page of each."""

Offsets = Mapping[QueueKey, int]
Spans = Mapping[QueueKey, Span]


def to_json(offsets: Offsets, brokers: Iterable[str] = ()) -> StreamOffsets:
    """As a checkpoint keeps them; brokers are known also if they have no queue yet."""
    kept: StreamOffsets = {broker: {} for broker in sorted(brokers)}
    for key in sorted(offsets):
        kept.setdefault(key.broker, {}).setdefault(key.topic, {})[str(key.queue_id)] = offsets[key]
    return kept


def from_json(kept: StreamOffsets) -> dict[QueueKey, int]:
    """As a checkpoint kept them."""
    return {
        QueueKey(broker, topic, int(queue_id)): offset
        for broker, topics in kept.items()
        for topic, queues in topics.items()
        for queue_id, offset in queues.items()
    }


def begun(kept: StreamOffsets, there: Spans) -> dict[QueueKey, int]:
    """Where each queue is read from, also those that came since.

    A queue that a known broker did not have then is read from its first message.  A broker that
    nobody knew may be old: of it we take what there is.
    """
    offsets = from_json(kept)
    more = {
        key: 0 if key.broker in kept else span.start
        for key, span in there.items()
        if key not in offsets
    }
    return {**offsets, **more}


class Loss(NamedTuple):
    """Messages that were to be read, and are not there."""

    queue: QueueKey
    #: Wanted: from, and up to, if that was said.
    start: int
    end: int | None
    #: None if the queue is gone.
    there: Span | None

    def error(self) -> RequestRefused:
        """Say it."""
        text = f"{self._cause()}; set failOnDataLoss=false to read what is there"
        return RequestRefused("data_lost", text, **self.facts())

    def _cause(self) -> str:
        if self.there is None:
            return "this read has no such queue: it was deleted, or its topic is not in the options"
        if max(self.start, self.end or 0) > self.there.end:
            cause = "the offset is wrong, or the store or topic was made anew"
            return f"the queue ends before this offset: {cause}"
        return "retention has deleted messages, or the store or topic was made anew"

    def facts(self) -> dict[str, object]:
        """What is known of it."""
        facts = {"start": self.start, "end": self.end}
        if self.there is not None:
            facts |= {"there_start": self.there.start, "there_end": self.there.end}
        return {**self.queue._asdict(), **facts}


def losses(starts: Offsets, there: Spans, of_others: Container[str] = ()) -> list[Loss]:
    """Queues that cannot be read on from where somebody stands.

    Of some brokers it is known that this was in another store.
    """
    return [
        Loss(key, start, None, there.get(key))
        for key, start in starts.items()
        if key not in there
        or not there[key].start <= start <= there[key].end
        or (key.broker in of_others and start > 0)
    ]


def readable(start: int, end: int, there: Span) -> Span:
    """What there is of a range: one that ends before it starts is of a queue that was made anew."""
    low = there.start if start > end else max(start, there.start)
    return Span(low, max(min(end, there.end), low))


def shared_out(starts: Offsets, ends: Offsets, rows_max: int) -> dict[QueueKey, int]:
    """Ends so that at most so many rows are read: of each queue its part, of some at least one."""
    backlogs = {key: max(end - starts.get(key, 0), 0) for key, end in ends.items()}
    total = sum(backlogs.values())
    if total <= rows_max:
        return dict(ends)
    given = {key: backlog * rows_max // total for key, backlog in backlogs.items()}
    left = rows_max - sum(given.values())
    # Those first that were cut most, or a small queue beside a large one would never be read.
    for key in sorted(backlogs, key=lambda key: -(backlogs[key] * rows_max % total)):
        if left == 0:
            break
        if given[key] < backlogs[key]:
            given[key] += 1
            left -= 1
    return {key: starts.get(key, 0) + rows for key, rows in given.items()}


def task_rows(rows: int) -> int:
    """Rows of each task, if so many are read and nobody has said how to cut them.

    A task costs Spark as much as 15,000 rows, and a broker is as fast as four of them: eight are
    enough, until each would take seconds.
    """
    return min(max(-(-rows // TASKS), TASK_ROWS_MIN), TASK_ROWS_MAX)


def packed(ranges: Iterable[Range], rows_max: int) -> Iterator[tuple[Range, ...]]:
    """Ranges by the task: about so many rows for each, and of one broker.

    Queues of a topic grow together, and a task has of each its part: their messages stand side by
    side in the log, and the broker reads them together.
    """
    held: list[Range] = []
    rows = 0
    for group in side_by_side(ranges):
        starts = {one.queue: one.start for one in group}
        ends = {one.queue: one.end for one in group}
        while starts != ends:
            if held and (rows >= rows_max or held[-1].queue.broker != group[0].queue.broker):
                yield tuple(held)
                held, rows = [], 0
            stops = shared_out(starts, ends, rows_max - rows)
            more = [Range(queue, at, stops[queue]) for queue, at in starts.items()]
            held += [one for one in more if one.start < one.end]
            rows += sum(one.end - one.start for one in more)
            starts = stops
    if held:
        yield tuple(held)


def side_by_side(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges of different queues of one topic, as they follow each other, some at a time."""
    group: list[Range] = []
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
