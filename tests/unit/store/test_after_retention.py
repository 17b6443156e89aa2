"""Questions about transactions older than the log are answered, not taken for damage."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.store.config import StoreConfig
from escrowmq.testing import Engine, FaultyDisk, message
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.states import State

HOUR_MS = 3_600_000
CONFIG = StoreConfig(
    segment_bytes_max=4_096,
    checkpoint_bytes=4_096,
    chunk_rows=8,
    retention_ms=10 * HOUR_MS,
    copy_after_ms=HOUR_MS,
)


def forget_the_past(engine: Engine) -> None:
    """Make everything stored so far older than retention, and delete it."""
    fill(engine)
    engine.clock.advance(ms=11 * HOUR_MS)
    fill(engine)
    assert engine.retain().segments > 0


def fill(engine: Engine) -> None:
    for _ in range(6):
        engine.append(message(bytes(900), topic="filler"))


def roll_back_a_chunk(engine: Engine) -> None:
    """Fill the chunk of the newest row, so that it leaves memory."""
    for number in range(CONFIG.chunk_rows):
        engine.rollback(engine.prepare(f"rolled-back-{number}").half_offset)


def rebuilt(engine: Engine) -> Engine:
    """A copy that found its state table damaged at its start, and used the log alone."""
    assert isinstance(engine.disk, FaultyDisk)
    disk = engine.disk.crash(everything_survives)
    for name in disk.list("statetable"):
        disk.flip_bit(f"statetable/{name}", 3, 0)
    again = Engine(disk, clock=engine.clock, config=engine.config, policy=engine.policy)
    assert again.found.rebuilt_because
    return again


def test_the_id_of_a_decided_transaction_can_be_used_again() -> None:
    engine = Engine(config=CONFIG)
    for number in range(8):
        engine.prepare(f"t{number}", number=0)
    for row in range(6):
        engine.commit(row)
    with pytest.raises(RequestRefused, match="already_committed"):
        engine.prepare("t3", number=0)
    forget_the_past(engine)
    # Two undecided rows keep its chunk, and so the hash of its id, in memory.
    assert not engine.prepare("t3", number=0).repeated
    assert engine.prepare("t7", number=0).repeated


@pytest.mark.parametrize("leaves_memory", [False, True])
def test_a_decision_stands_without_its_author(
    leaves_memory: bool,  # noqa: FBT001 - a column of the table
) -> None:
    engine = Engine(config=CONFIG)
    engine.prepare("t", message(b"later", deliver_after_ms=20 * HOUR_MS))
    engine.commit(0, by="producer")
    if leaves_memory:
        roll_back_a_chunk(engine)
    forget_the_past(engine)
    for now in (engine, engine.crash(), rebuilt(engine)):
        settled = now.commit(0)
        assert (settled.repeated, settled.by, settled.at_ms) == (True, "", 0)
        with pytest.raises(RequestRefused, match="already_committed"):
            now.rollback(0)


def test_the_decider_is_known_as_long_as_the_log_has_it() -> None:
    engine = Engine(config=CONFIG)
    engine.prepare("t", message(b"later", deliver_after_ms=20 * HOUR_MS))
    roll_back_a_chunk(engine)
    fill(engine)
    engine.clock.advance(ms=11 * HOUR_MS)
    engine.commit(0, by="producer")
    decided_at_ms = engine.clock.now_ms()
    fill(engine)
    assert engine.retain().carried == 1
    for now in (engine, engine.crash()):
        settled = now.commit(0)
        assert (settled.by, settled.at_ms) == ("producer", decided_at_ms)
    # A table rebuilt from the log meets the decision before the row, and may have forgotten it.
    assert rebuilt(engine).commit(0).repeated


def test_a_message_that_waited_longer_than_retention_is_found_by_its_first_log_offset() -> None:
    engine = Engine(config=CONFIG)
    held = engine.prepare("t", message(b"later", deliver_after_ms=20 * HOUR_MS))
    engine.commit(0)
    forget_the_past(engine)
    engine.clock.advance(ms=9 * HOUR_MS)
    assert engine.release_due() == [0]
    assert [m.body for m in engine.pull("orders")] == [b"later"]
    for now in (engine, engine.crash(), rebuilt(engine)):
        located = now.reader.at(held.log_offsets[0])
        assert located is not None
        assert located.is_visible
        assert located.half is not None
        assert located.half.state is State.COMMITTED


def test_rows_whose_request_lost_its_first_row_are_carried_on() -> None:
    """The request spans two chunks; the first is deleted while rows of the second wait."""
    engine = Engine(config=CONFIG)
    for number in range(6):
        engine.rollback(engine.prepare(f"before-{number}").half_offset)
    delayed = [message(b"%d" % n, deliver_after_ms=30 * HOUR_MS) for n in range(4)]
    engine.prepare("t", message(b"now"), message(b"also now"), *delayed)
    engine.commit(6)
    roll_back_a_chunk(engine)
    forget_the_past(engine)
    forget_the_past(engine)
    assert engine.core.table.get(6) is None
    for now in (engine, engine.crash(), rebuilt(engine)):
        forget_the_past(now)
        now.release_due()
        assert [m.body for m in now.pull("orders")] == [b"0", b"1", b"2", b"3"]
