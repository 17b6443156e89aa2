"""Planted bugs, each of which the judge must catch: a judge that never complains proves nothing.

They are planted through doubles and patches of this test, never in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from escrowmq.model.errors import EscrowError
from escrowmq.store.disk.disk import Bytes
from escrowmq.store.log import frames
from escrowmq.store.log.frames import Vouched, decode_records, stated_head
from escrowmq.store.queue.consume_queue import ConsumeQueue
from escrowmq.store.recovery import recovery, replay
from escrowmq.store.recovery.recovery import RecoveryResult
from escrowmq.store.recovery.replay import Replayer
from escrowmq.store.retention import retirement
from escrowmq.store.store import Store
from escrowmq.store.table.chunk import Chunk
from escrowmq.store.table.state_table import StateTable
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import Flush, Operation
from escrowmq.transaction.core import Transactions, Where
from escrowmq.transaction.decisions import carrying, deciding
from escrowmq.transaction.records import (
    Answered,
    Asked,
    Decided,
    DecidedMany,
    Parked,
    Record,
    Resumed,
)
from escrowmq.transaction.states import State
from tests.crash.driver import BORN, CONFIG, Acked, Driver, Tried
from tests.crash.explore import Exploration
from tests.crash.model import Wrong
from tests.crash.workload import scripted

Patch = pytest.MonkeyPatch
#: How a bug shows: the judge complains, the store complains, or other code fails.
COMPLAINTS = (Wrong, EscrowError, AssertionError, LookupError, ValueError, TypeError)


def complaint(
    driver: Driver,
    recovering: Callable[[], AbstractContextManager[object]] = nullcontext,
    step: int = 5,
) -> str:
    """Return what the judge reports about a day with a planted bug; empty if it does not notice."""
    try:
        scripted(driver)
        exploration = Planted(driver, recovering)
        last = len(driver.disk.journal)
        for case in exploration.cases(range(3, last, step), most=3, subsets=1):
            exploration.judge(case, twice=case.position % 4 == 0)
    except COMPLAINTS as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Planted(Exploration):
    """Recovers with a planted bug."""

    def __init__(
        self, driver: Driver, recovering: Callable[[], AbstractContextManager[object]]
    ) -> None:
        super().__init__(driver, seed=1)
        self._recovering = recovering

    def open(self, disk: FaultyDisk) -> tuple[Store, RecoveryResult]:
        """Recover with the bug in place."""
        with self._recovering():
            return super().open(disk)


def test_a_day_without_a_planted_bug_passes() -> None:
    assert complaint(Driver(FaultyDisk(BORN)), step=29) == ""


class NeverFlushes(FaultyDisk):
    """Skips every flush of the log."""

    def perform(self, operation: Operation) -> None:
        """Perform everything else."""
        if not (isinstance(operation, Flush) and operation.path.startswith("commitlog/")):
            super().perform(operation)


def test_a_skipped_flush_is_caught() -> None:
    assert complaint(Driver(NeverFlushes(BORN))) != ""


def test_a_projection_ahead_of_the_log_is_caught() -> None:
    """Without other flushes, only a checkpoint flushes the log before its own files."""
    config = replace(CONFIG, durability="os")
    assert complaint(Driver(NeverFlushes(BORN), config)) != ""


class Hasty(Driver):
    """Answers before the flush."""

    def sync(self) -> None:
        """Mark the answers before the flush."""
        self.disk.mark(Tried(len(self.history)))
        self.disk.mark(Acked(len(self.history)))
        super().sync()


def test_an_answer_before_the_flush_is_caught() -> None:
    assert complaint(Hasty(FaultyDisk(BORN))) != ""


def test_a_directory_that_is_never_flushed_is_caught() -> None:
    disk = FaultyDisk(BORN)
    disk.lying_flush_directory = True
    assert complaint(Driver(disk)) != ""


def credulous(data: Bytes, at: int, log_offset: int, _seed: int) -> Iterator[Vouched]:
    """Accept any bytes that look like a frame."""
    while (head := stated_head(data, at)) is not None and at + head.length <= len(data):
        tail = data[at + head.records_at : at + head.length]
        try:
            decode_records(tail, log_offset)
        except EscrowError:
            return
        yield log_offset, head.length, head.records_at, 0, 0, tail
        at += head.length
        log_offset += head.length


def test_an_ignored_checksum_is_caught() -> None:
    def believing() -> AbstractContextManager[object]:
        patch = Patch()
        for module in (frames, replay):
            patch.setattr(module, "each_vouched", credulous)
            patch.setattr(module, "are_intact", lambda *_: True)
        patch.setattr(Replayer, "_gather", lambda *_: False)
        return _undone(patch)

    assert complaint(Driver(FaultyDisk(BORN)), believing, step=2) != ""


class _undone(AbstractContextManager[object]):  # noqa: N801 - named like contextlib's
    """Reverts a patch at the end."""

    def __init__(self, patch: Patch) -> None:
        self._patch = patch

    def __exit__(self, *_: object) -> None:
        """Revert the patch."""
        self._patch.undo()


def test_a_decision_that_is_applied_twice_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        deciding,
        "answer_again",
        lambda core, half, **_: deciding.decide_as(core, half, State.COMMITTED, "again", 0),
    )
    assert complaint(Driver(FaultyDisk(BORN))) != ""


def test_a_skipped_replay_of_the_state_table_is_caught() -> None:
    def forgetful() -> AbstractContextManager[object]:
        patch = Patch()
        patch.setattr(StateTable, "decide", lambda *_: None)
        patch.setattr(replay, "decide_singles", lambda *_: None)
        return _undone(patch)

    assert complaint(Driver(FaultyDisk(BORN)), forgetful) != ""


def test_a_segment_deleted_around_a_needed_half_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(retirement, "needed_below", lambda *_: iter(()))
    assert complaint(Driver(FaultyDisk(BORN))) != ""


class Stutterer(Replayer):
    """Replays some frames twice: records hold absolute values, so this changes nothing."""

    twice: tuple[type, ...] = (Asked, Answered, Parked, Resumed)

    def apply(self, records: list[Record], where: Where) -> None:
        """Apply some kinds of record a second time."""
        super().apply(records, where)
        if isinstance(records[-1], self.twice):
            super().apply(records, where)


def stuttering(replayer: type[Replayer] = Stutterer) -> Callable[[], _undone]:
    """Return a patch that recovers with this replayer."""

    def patched() -> _undone:
        patch = Patch()
        patch.setattr(recovery, "Replayer", replayer)
        return _undone(patch)

    return patched


def count_up(core: Transactions, record: Asked, _where: Where) -> None:
    """Add one check to the row's count, and ignore the count in the record."""
    half = core.table.get(record.head)
    sent = half.checks_sent if half else 0
    core.table.count_check(record.head, sent + 1, record.next_check_at_ms)


def test_replaying_a_check_twice_changes_nothing() -> None:
    assert complaint(Driver(FaultyDisk(BORN)), stuttering()) == ""


def test_a_check_that_is_counted_by_increment_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Transactions, "_apply_asked", count_up)
    assert "'checks_sent': 2" in complaint(Driver(FaultyDisk(BORN)), stuttering())


def test_a_decision_that_is_replayed_twice_is_caught() -> None:
    class Decisive(Stutterer):
        """Shows committed messages a second time."""

        twice = (Decided,)

        def _gather(self, *_: object) -> bool:
            return False

    assert complaint(Driver(FaultyDisk(BORN)), stuttering(Decisive)) != ""


def test_many_decisions_that_are_replayed_twice_are_caught() -> None:
    class Decisive(Stutterer):
        """Shows messages that were committed together a second time."""

        twice = (DecidedMany,)

    assert complaint(Driver(FaultyDisk(BORN)), stuttering(Decisive)) != ""


def test_many_decisions_that_are_only_half_applied_are_caught(monkeypatch: Patch) -> None:
    whole = StateTable.decide_many

    def half(table: StateTable, rows: Any, state: State, op_offset: int) -> None:  # noqa: ANN401
        whole(table, rows[1:], state, op_offset)

    monkeypatch.setattr(StateTable, "decide_many", half)
    assert complaint(Driver(FaultyDisk(BORN))) != ""


def commit_late(driver: Driver) -> None:
    """Commit a half message long after it was stored, then delete the log that it was stored in."""
    row = driver.prepare(driver.message())
    driver.append(*(driver.message(size=900) for _ in range(6)))
    driver.sync()
    driver.clock.advance(seconds=50)
    driver.commit(row)
    driver.append(driver.message(size=900))
    driver.sync()
    driver.clock.advance(seconds=15)
    driver.append(*(driver.message(size=900) for _ in range(6)))
    driver.sync()
    driver.retain()
    driver.judge()


def test_a_late_commit_without_its_copy_is_caught(monkeypatch: Patch) -> None:
    commit_late(Driver(FaultyDisk(BORN)))
    monkeypatch.setattr(carrying, "is_stale", lambda *_: False)
    with pytest.raises(COMPLAINTS):
        commit_late(Driver(FaultyDisk(BORN)))


def test_a_queue_whose_start_does_not_move_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ConsumeQueue, "forget_below", lambda *_: None)
    assert complaint(Driver(FaultyDisk(BORN))) != ""


def test_rows_that_lose_their_decision_in_a_checkpoint_are_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Chunk, "decide_rows", lambda *_: None)
    monkeypatch.setattr(Chunk, "set_state", lambda *_, **__: None)
    assert complaint(Driver(FaultyDisk(BORN))) != ""
