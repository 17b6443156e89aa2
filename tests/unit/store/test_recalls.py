"""Recalls on disk: they survive restarts, crashes and checkpoints, and leave nothing to keep."""

from __future__ import annotations

import pytest

from escrowmq.store.reading.reader import Located
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.repair.inspect import inspect
from escrowmq.store.table.undecided import held_back
from escrowmq.transaction.commands import Decision
from escrowmq.transaction.recall_commands import Recall, RecallReply
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, Driver, message


def delayed(driver: Driver, count: int = 3, after_ms: int = MINUTE) -> list[int]:
    at_ms = driver.clock.now_ms() + after_ms
    driver.append(*(message(f"m{one}", deliver_at_ms=at_ms + one) for one in range(count)))
    return list(range(driver.store.table.end - count, driver.store.table.end))


def recall(driver: Driver, row: int) -> Decision:
    known = driver.half(row)
    return driver.do(Recall(half_offset=row, log_offset=known.log_offset, epoch="", by="sender"))


def is_repeat(driver: Driver, row: int) -> bool:
    reply = recall(driver, row).reply
    assert isinstance(reply, RecallReply)
    return reply.repeated


@pytest.mark.parametrize("is_checkpointed", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_recall_survives_a_restart(*, is_clean: bool, is_checkpointed: bool) -> None:
    driver = Driver()
    delayed(driver)
    recall(driver, 1)
    if is_checkpointed:
        driver.store.checkpoint()
    recall(driver, 2)
    after = driver.closed_and_opened() if is_clean else driver.crashed()
    assert [after.half(row).state for row in range(3)] == [
        State.COMMITTED,
        State.ROLLED_BACK,
        State.ROLLED_BACK,
    ]
    assert is_repeat(after, 1)
    assert is_repeat(after, 2)
    after.clock.advance(ms=HOUR)
    after.release()
    assert after.bodies() == ["m0"]
    assert after.crashed().bodies() == ["m0"]


def test_each_row_of_a_batch_is_recalled_alone_wherever_it_is_kept() -> None:
    driver = Driver(chunk_rows=8, copy_after_ms=24 * HOUR)
    delayed(driver, 4, after_ms=HOUR)
    recall(driver, 0)
    recall(driver, 2)
    recall(driver, 3)
    for number in range(15):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes"))
    driver.store.checkpoint()
    table = driver.store.table
    # The row that still waits outlived its chunk; only files hold the recalled ones.
    assert list(table.survivors.rows) == [1]
    assert [table.op_offset(driver.half(row)) >= 0 for row in range(4)] == [True, False, True, True]
    assert is_repeat(driver, 2)
    assert not is_repeat(driver, 1)
    for after in (driver, driver.crashed(), driver.closed_and_opened()):
        assert {after.half(row).state for row in range(4)} == {State.ROLLED_BACK}
        assert is_repeat(after, 1)


def test_a_recalled_message_is_neither_carried_forward_nor_counted() -> None:
    driver = Driver()
    delayed(driver, 2, after_ms=60 * HOUR)
    recall(driver, 0)
    assert held_back(driver.store.table).timed.total() == 1
    assert driver.store.table.needed == 1
    driver.append(message("old"))
    driver.roll_segment()
    driver.clock.advance(ms=50 * HOUR)
    driver.roll_segment()
    assert driver.retain().carried == 1
    recall(driver, 1)
    assert driver.store.table.needed == 0
    driver.clock.advance(ms=20 * HOUR)
    driver.release()
    assert "m1" not in driver.bodies()


def test_an_administrator_still_sees_a_recalled_message_as_not_visible() -> None:
    driver = Driver()
    delayed(driver, 1)
    recall(driver, 0)
    located = driver.reader.at(driver.half(0).log_offset)
    assert isinstance(located, Located)
    assert (located.is_visible, located.may_become_visible) == (False, False)


def test_inspection_counts_recalls() -> None:
    driver = Driver()
    delayed(driver)
    recall(driver, 1)
    driver.clock.advance(ms=2 * SECOND)
    driver.store.close()
    counts = inspect(driver.disk).report.counts
    assert (counts.scheduled, counts.recalled, counts.visible) == (3, 1, 0)


def test_replaying_a_recall_on_a_later_state_changes_nothing() -> None:
    driver = Driver()
    delayed(driver)
    recall(driver, 1)
    driver.store.checkpoint()
    driver.store.close()
    store, _ = open_store(driver.disk, driver.store.config, driver.store.core.policy, b"\0" * 8)
    half = store.core.row(1)
    assert (half.state, half.next_at_ms) == (State.ROLLED_BACK, NEVER)
