"""Checks the files that a checkpoint names, all of which can be rebuilt from an intact log.

It also finds the state rows and queue entries in them that point into damaged ranges of the log.
"""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.rows import QUEUE_ENTRY, STATE_ROW, SURVIVOR_ROW, Rows, first_bad
from escrowmq.store.index.key_run import open_run
from escrowmq.store.queue import queue_files
from escrowmq.store.repair.report import NumberSpan, QueueSpan
from escrowmq.store.table import state_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.repair.report import StoreReport
    from escrowmq.transaction.records import NamedQueue

KEY_DIRECTORY = "keyindex"
_PIECE_ROWS = 65_536


class ProjectionCheck:
    """Reads all files of one checkpoint, a piece at a time."""

    def __init__(self, disk: Disk, report: StoreReport) -> None:
        self._disk = disk
        self._report = report
        self._hits = report.hits
        self._starts = np.array([found.log_offset for found in report.damage], dtype=np.int64)
        self._ends = np.array([found.end for found in report.damage], dtype=np.int64)

    def read(self, checkpoint: Checkpoint) -> None:
        """Check every file that the checkpoint names."""
        for chunk in checkpoint.chunks:
            self._state_file(chunk.name, STATE_ROW, chunk.count, chunk.base)
        if checkpoint.survivors_count:
            name = state_files.survivors_name(checkpoint.survivors_generation)
            self._state_file(name, SURVIVOR_ROW, checkpoint.survivors_count)
        for named, (start, end) in zip(checkpoint.queues, checkpoint.queue_bounds, strict=True):
            self._queue(named, start, end)
        for name in checkpoint.key_runs:
            self._key_run(f"{KEY_DIRECTORY}/{name}")

    def _state_file(self, name: str, kind: np.dtype[np.void], count: int, base: int = 0) -> None:
        path = f"{state_files.DIRECTORY}/{name}"
        for at, rows in self._pieces(path, kind, 0, count, "state_table_damaged"):
            if len(self._starts):
                numbers = (
                    rows["half_offset"]
                    if kind is SURVIVOR_ROW
                    else np.arange(base + at, base + at + len(rows))
                )
                is_there = rows["size"] > 0
                _extend(self._hits.halves, numbers[is_there & self._is_hit(rows["location"])])
                _extend(self._hits.decisions, numbers[self._is_hit(rows["op_offset"])])

    def _queue(self, named: NamedQueue, start: int, end: int) -> None:
        offset = start
        prefix = queue_files.files_of(named.id)
        if start < end and not named.incarnation:
            prefix = queue_files.found_files(
                self._disk, prefix, named.topic, named.queue_id, end - 1
            )
        while offset < end:
            base = offset - offset % queue_files.FILE_ENTRIES
            stop = min(end, base + queue_files.FILE_ENTRIES)
            path = queue_files.path_of(prefix, base)
            for at, rows in self._pieces(
                path, QUEUE_ENTRY, offset - base, stop - offset, "consume_queue_damaged"
            ):
                hit = np.flatnonzero((rows["size"] > 0) & self._is_hit(rows["log_offset"]))
                self._hits.messages.extend(
                    QueueSpan(
                        topic=named.topic,
                        queue_id=named.queue_id,
                        first=base + at + first,
                        count=count,
                    )
                    for first, count in _runs(hit)
                )
            offset = stop

    def _key_run(self, path: str) -> None:
        try:
            open_run(self._disk, path).close()
        except FileNotFoundError:
            self._report.note("key_index_damaged", path, "the file is missing")
        except StoreCorrupt as error:
            self._report.note(error.code, path, error.message)
        except StoreUnusable as error:
            self._report.note(error.code, path, f"version {error.fields['version']}")

    def _pieces(
        self, path: str, kind: np.dtype[np.void], first: int, count: int, code: str
    ) -> Iterator[tuple[int, Rows]]:
        """Yield records ``[first, first + count)`` of a file, checked; stop at the first fault."""
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            self._report.note(code, path, "the file is missing")
            return
        with closing(file):
            for at in range(first, first + count, _PIECE_ROWS):
                wanted = min(_PIECE_ROWS, first + count - at)
                data = file.read_at(at * kind.itemsize, wanted * kind.itemsize)
                rows = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
                bad = first_bad(rows) if len(rows) else None
                if bad is not None:
                    what = "a check word is wrong"
                    self._report.note(code, path, what, at=(at + bad) * kind.itemsize)
                    return
                yield at, rows
                if len(rows) < wanted:
                    what = "the file is too short"
                    self._report.note(code, path, what, at=at * kind.itemsize + len(data))
                    return

    def _is_hit(self, offsets: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        at = np.searchsorted(self._starts, offsets, side="right") - 1
        hit: np.ndarray[Any, np.dtype[np.bool_]] = at >= 0
        hit[hit] = offsets[hit] < self._ends[at[hit]]
        return hit


def _extend(spans: list[NumberSpan], numbers: Rows) -> None:
    spans.extend(
        NumberSpan(first=int(numbers[at]), count=count) for at, count in _runs_of_numbers(numbers)
    )


def _runs_of_numbers(numbers: Rows) -> Iterator[tuple[int, int]]:
    if len(numbers):
        borders = np.flatnonzero(np.diff(numbers) != 1) + 1
        edges = [0, *borders.tolist(), len(numbers)]
        yield from ((at, end - at) for at, end in pairwise(edges))


def _runs(numbers: Rows) -> Iterator[tuple[int, int]]:
    for at, count in _runs_of_numbers(numbers):
        yield int(numbers[at]), count


def merged(spans: Iterable[NumberSpan]) -> list[NumberSpan]:
    """Return the same numbers in as few spans as possible, sorted."""
    result: list[NumberSpan] = []
    for span in sorted(spans, key=lambda span: span.first):
        if result and span.first <= result[-1].first + result[-1].count:
            last = result[-1]
            end = max(last.first + last.count, span.first + span.count)
            result[-1] = NumberSpan(first=last.first, count=end - last.first)
        else:
            result.append(span)
    return result


def merged_by_queue(spans: Iterable[QueueSpan]) -> list[QueueSpan]:
    """Merge spans of queue offsets, queue by queue."""
    by_queue: dict[tuple[str, int], list[NumberSpan]] = {}
    for span in spans:
        of_queue = by_queue.setdefault((span.topic, span.queue_id), [])
        of_queue.append(NumberSpan(first=span.first, count=span.count))
    return [
        QueueSpan(topic=topic, queue_id=queue_id, first=span.first, count=span.count)
        for (topic, queue_id), of_queue in sorted(by_queue.items())
        for span in merged(of_queue)
    ]


def add_gaps(report: StoreReport, queues: dict[int, NamedQueue], known_to: int) -> None:
    """Add to the hits all numbers that no intact frame assigned: a destroyed frame did.

    Below the log offset ``known_to``, the projections already know what is lost.
    """
    hits = report.hits
    for gap in report.gaps:
        if gap.before <= known_to:
            continue
        count = gap.found - gap.expected
        if gap.what == "half":
            hits.halves.append(NumberSpan(first=gap.expected, count=count))
        elif gap.what == "queue" and gap.queue in queues:
            named = queues[gap.queue]
            hits.messages.append(
                QueueSpan(
                    topic=named.topic, queue_id=named.queue_id, first=gap.expected, count=count
                )
            )
    hits.halves = merged(hits.halves)
    hits.decisions = merged(hits.decisions)
    hits.messages = merged_by_queue(hits.messages)
