"""Retires the oldest segment of the log, step by step.

Half messages that are still needed are carried forward. Then queues start later, and everything in
memory that refers to the deleted log is dropped. Two checkpoints record the new start, and only
then are files removed. A crash at any point leaves a store that opens and goes on.

The code between two steps is short and never waits for the disk. It runs between two batches, while
no checkpoint is in progress and every queue has its entries. Long work is a step, which the caller
does. ADR-0024 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import msgspec

from escrowmq.store.disk.rows import QUEUE_ENTRY, STATE_ROW, SURVIVOR_ROW, Rows
from escrowmq.store.log.commit_log import remove_segments
from escrowmq.store.retention.carry_slices import bytes_of, in_order, slices
from escrowmq.store.retention.needed import SURVIVORS_SLICE, needed_below
from escrowmq.transaction.commands import Carry, Decision

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk, File
    from escrowmq.store.log.commit_log import Segment
    from escrowmq.store.queue.consume_queue import ConsumeQueue
    from escrowmq.store.store import Store

COMPUTED_HERE_MAX = 16_384
"""Rows that the event loop sorts and adds up itself; more are left to another thread."""

NAMED_BYTES = 256
"""Bytes that a queue takes in two checkpoints."""


class Waits(StrEnum):
    """Reasons why retention has not deleted everything it may."""

    NO = ""
    #: The disk has no room to carry half messages forward first.
    FOR_ROOM = "room"
    #: ``store.retention_bytes`` is exceeded, but a deletion would carry the same messages again.
    FOR_DECISIONS = "decisions"
    #: The caller does not allow deletion at this time.
    FOR_PERMISSION = "permission"


class Removed(msgspec.Struct, kw_only=True):
    """Result of one run of retention."""

    log_start: int
    segments: int = 0
    carried: int = 0
    waits: Waits = Waits.NO
    #: Bytes of room that are missing, if retention waits for room.
    missing_bytes: int = 0


class Carrying(msgspec.Struct, frozen=True):
    """A step: the caller executes these commands durably and sends their decisions back."""

    commands: Sequence[Carry]


class Aside(msgspec.Struct, frozen=True):
    """Work that is long or waits for the disk; no checkpoint may be in progress meanwhile."""

    work: Callable[[], object]


class Checkpointing(msgspec.Struct, frozen=True):
    """A request to take a checkpoint."""


class SliceEnd(msgspec.Struct, frozen=True):
    """The end of a slice: other work may run."""


Step = Carrying | Aside | Checkpointing | SliceEnd
Steps = Generator[Step, Sequence[Decision] | None, None]
Surveying = Generator[Step, Sequence[Decision] | None, Rows]
_PAUSE = SliceEnd()
T = TypeVar("T")


class CarryPlan(msgspec.Struct, frozen=True):
    """The rows to carry forward out of the oldest segment."""

    rows: Rows
    #: The bytes that carrying them writes, and the bytes of those that were carried before.
    bytes: int
    carried_bytes: int
    #: The lowest log offset of needed rows in later segments; None if there are none.
    later_at: int | None


def _plan(needed: Rows, segment_end: int) -> CarryPlan:
    is_here = needed["location"] < segment_end
    rows, later = needed[is_here], needed["location"][~is_here]
    return CarryPlan(
        rows=rows,
        bytes=bytes_of(rows),
        carried_bytes=int(rows["size"][rows["was_carried"]].sum()),
        later_at=int(later.min()) if len(later) else None,
    )


def _computed(work: Callable[[], T], rows: int) -> Generator[Step, Sequence[Decision] | None, T]:
    """Return the result of work on the caller's own rows; do it aside if there are many."""
    if rows <= COMPUTED_HERE_MAX:
        return work()
    results: list[T] = []
    yield Aside(lambda: results.append(work()))
    return results[0]


class Retirement:
    """Retirement of the oldest segment, and of those after it that hold nothing needed."""

    def __init__(self, store: Store, below: int, removed: Removed, *, is_expired: bool) -> None:
        self._store = store
        #: The log may be deleted up to here at most.
        self._below = below
        self._removed = removed
        #: Whether the oldest segment is deleted by age, and not only by size.
        self._is_expired = is_expired
        #: No survivor below this row is needed.
        self._needed_from = 0
        self._uses_reserve = False
        #: Roughly how many bytes two checkpoints will write.
        self._files_bytes = 0

    def steps(self) -> Steps:
        """Yield all steps; if retention must wait for room or decisions, none of them deletes."""
        store = self._store
        oldest = store.log.segments[0]
        needed = yield from self._survey(self._below)
        plan = yield from _computed(lambda: _plan(needed, oldest.end), len(needed))
        needed = plan.rows
        if plan.later_at is not None:
            # Rows of a later segment are carried forward when that segment is retired.
            self._below = self._segment_of(plan.later_at).start
        if not self._is_expired and self._would_copy_again(plan.carried_bytes, oldest):
            self._removed.waits = Waits.FOR_DECISIONS
            return
        yield from self._make_room(plan.bytes)
        while len(needed) and not self._removed.waits:
            yield from self._carry(needed)
            needed = yield from self._survey(self._below)
        if self._removed.waits:
            return
        yield from self._forget()
        # Twice: the checkpoint before the newest must not need what is about to be deleted.
        yield Checkpointing()
        yield Checkpointing()
        yield from self._remove()

    def _segment_of(self, log_offset: int) -> Segment:
        return next(s for s in self._store.log.segments if s.start <= log_offset < s.end)

    # Carrying.

    def _survey(self, below: int) -> Surveying:
        """Return the needed rows whose bytes lie below this log offset."""
        table = self._store.table
        found: list[Rows] = []
        self._needed_from = table.end
        for one in needed_below(table, below):
            if found:
                yield _PAUSE
            self._needed_from = min(self._needed_from, one.lowest)
            found.append(one.rows)
        return (yield from _computed(lambda: in_order(found), sum(map(len, found))))

    def _would_copy_again(self, carried_bytes: int, oldest: Segment) -> bool:
        """Whether retention by size would carry the same half messages forward again and again.

        Carrying a few again is fine if it frees much more: a parked one must not pin the log.
        """
        if not carried_bytes:
            return False
        limit = self._store.config.retention_bytes
        return self._store.table.needed_bytes > limit or 2 * carried_bytes > oldest.size

    def _make_room(self, carried_bytes: int) -> Steps:
        """Check that there is room for the whole retirement; use the reserve as a last resort."""
        space = self._store.space
        self._files_bytes = _files_bytes(self._store)
        size = carried_bytes + self._files_bytes
        if not space.look_for_retention(size):
            return
        missing = space.look_for_retention(size, from_reserve=True)
        if missing:
            self._wait_for_room(missing)
            return
        self._uses_reserve = True
        if space.reserve.held:
            yield Aside(space.reserve.release)

    def _carry(self, needed: Rows) -> Steps:
        store, removed = self._store, self._removed
        for one in slices(needed, store.last_at_ms):
            missing = store.space.look_for_retention(
                one.bytes + self._files_bytes, from_reserve=self._uses_reserve
            )
            if missing:
                self._wait_for_room(missing)
                return
            decisions = yield Carrying(one.commands)
            assert decisions is not None, "a slice is answered with its decisions"
            removed.carried += sum(len(decision.copies) for decision in decisions)

    def _wait_for_room(self, missing_bytes: int) -> None:
        self._removed.waits = Waits.FOR_ROOM
        self._removed.missing_bytes = missing_bytes

    # Deleting.

    def _forget(self) -> Steps:
        """Drop everything in memory that refers to the log about to be deleted."""
        store, below = self._store, self._below
        cut_at_ms = self._segment_of(below).first_at_ms
        bound_ms = cut_at_ms + store.copy_after_max_ms
        queues, starts = list(store.queues.values()), list[int]()
        # Find where each queue will start once the log below is gone.
        yield Aside(lambda: starts.extend(one.first_after(below, bound_ms) for one in queues))
        for queue, start in zip(queues, starts, strict=True):
            queue.forget_below(start)
        yield from self._forget_names()
        store.core.batches.forget_below(below)
        store.core.names.origins.forget_below(below)
        store.keys.forget_below(below)
        store.parkings.forget_below(below)
        store.log_start = below
        store.table.forget_files_below(below, self._needed_from)
        survivors = store.table.survivors
        rows = list(survivors.rows)
        for at in range(0, len(rows), SURVIVORS_SLICE):
            if at:
                yield _PAUSE
            survivors.forget(rows[at : at + SURVIVORS_SLICE], store.table.start, below)

    def _forget_names(self) -> Steps:
        """Forget deleted queues whose last waiting message has been decided or dropped."""
        names, table = self._store.core.names, self._store.table
        if not names.deleted:
            return
        yield _PAUSE
        held = table.held_in(list(names.deleted), 0)
        names.forget_unless_held(held.undecided.keys() | held.waiting.keys())
        yield _PAUSE

    def _remove(self) -> Steps:
        store, removed = self._store, self._removed
        segments = store.log.forget_below(self._below)
        removed.segments += len(segments)
        removed.log_start = store.log.start
        queues = [queue for queue in store.queues.values() if queue.may_have_forgotten_files]
        paths: list[str] = []
        yield Aside(lambda: _remove_log(store.disk, segments, queues, paths))
        if paths:
            files = store.open_files.release(paths)
            yield Aside(lambda: _remove_queues(store.disk, paths, files))
        for queue in queues:
            queue.note_files_gone()


def _files_bytes(store: Store) -> int:
    """Estimate how many bytes two checkpoints will write."""
    chunks = store.table.chunks.values()
    rows = sum(chunk.count for chunk in chunks if chunk.needed or chunk.is_dirty)
    entries = sum(queue.unfiled for queue in store.queues.values())
    return (
        rows * STATE_ROW.itemsize
        + 2 * len(store.table.survivors.rows) * SURVIVOR_ROW.itemsize
        + entries * QUEUE_ENTRY.itemsize
        + store.keys.unfiled_bytes
        + NAMED_BYTES * (1 + len(store.queues))
    )


def _remove_log(
    disk: Disk, segments: list[Segment], queues: list[ConsumeQueue], paths: list[str]
) -> None:
    """Delete segments, and find the queue files that can be deleted with them."""
    remove_segments(disk, segments)
    paths.extend(path for queue in queues for path in queue.forgotten_files())


def _remove_queues(disk: Disk, paths: list[str], files: list[File]) -> None:
    for file in files:
        file.close()
    for path in paths:
        disk.remove(path)
