"""Single frames and messages from the log are verified before they are returned."""

from __future__ import annotations

import msgspec
import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.log import reading as log_reading
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.log.frames import HEAD_BYTES, MAGIC
from escrowmq.transaction.commands import Append, Prepare
from escrowmq.transaction.records import UNNUMBERED
from tests.unit.store.helpers import HOUR, T0, Driver, faulty, message

FIRST = segment_path(0)


@pytest.fixture
def driver() -> Driver:
    """One transaction of three half messages, committed."""
    driver = Driver()
    driver.hold("t", message("a"), message("b"), message("c"), number=0)
    driver.commit(0, by="producer")
    return driver


def test_a_message_is_read_from_what_is_only_gathered() -> None:
    driver = Driver()
    command = Prepare(group="g", transaction_id="t", messages=(message("x"), message("y")))
    driver.store.execute(command, T0)
    half = driver.half(1)
    assert driver.store.reading.record_of(half)[-len("orders") - 3 :].startswith(b"\x06orders")
    assert driver.store.table.identity(driver.half(0)) == ("t", UNNUMBERED)
    assert driver.store.table.holds(half, message("y"))
    assert not driver.store.table.holds(half, message("z"))
    assert not driver.store.table.holds(half, message("y", topic="other"))


def test_any_flipped_bit_of_a_message_is_refused_with_its_place(driver: Driver) -> None:
    half = driver.half(1)
    disk = faulty(driver)
    for place in range(half.location, half.location + half.size):
        disk.flip_bit(FIRST, place, place % 8)
        with pytest.raises(StoreCorrupt) as refused:
            driver.store.reading.record_of(half)
        assert refused.value.code == "message_damaged"
        assert refused.value.fields == {"log_offset": half.location, "size": half.size}
        disk.flip_bit(FIRST, place, place % 8)
    driver.store.reading.record_of(half)


def test_the_decider_is_read_from_a_sound_frame_only(driver: Driver) -> None:
    op_offset = driver.half(0).op_offset
    assert driver.store.reading.decision(op_offset) == ("producer", T0)
    for place in (op_offset, op_offset + 50):
        faulty(driver).flip_bit(FIRST, place, 0)
        with pytest.raises(StoreCorrupt) as refused:
            driver.store.reading.decision(op_offset)
        assert refused.value.code == "frame_damaged"
        assert refused.value.fields == {"log_offset": op_offset}
        faulty(driver).flip_bit(FIRST, place, 0)


def test_a_frame_without_a_decision_decides_nothing(driver: Driver) -> None:
    with pytest.raises(StoreCorrupt) as refused:
        driver.store.reading.decision(0)
    assert refused.value.code == "op_record_missing"


def test_a_decision_is_found_behind_other_records_of_its_frame() -> None:
    """A finished batch rolls back repeated attempts: one frame, several decisions."""
    driver = Driver()
    driver.hold("first", number=0, bulk=True)
    driver.decide_batch(1, ("first", 0, 1))
    for name in ("a", "b"):
        driver.hold(name, number=0, bulk=True)
    assert driver.decide_batch(1, ("a", 0, 1), ("b", 0, 1)).outcome == "already_done"
    assert [driver.store.table.decided_by(driver.half(row)) for row in (1, 2)] == [
        ("spark", T0)
    ] * 2


def test_a_request_is_known_by_its_first_row_only(driver: Driver) -> None:
    assert driver.store.table.identity(driver.half(0)) == ("t", 0)
    for row in (1, 2):
        assert driver.store.table.identity(driver.half(row)) == ("", UNNUMBERED)


def test_a_head_that_a_producer_hides_before_a_message_names_no_decider() -> None:
    """The sender chooses the bytes before a message that is not the first of its frame."""
    fake = MAGIC + b"\1\0\0\0" + (60).to_bytes(4, "little") + (44).to_bytes(4, "little")
    driver = Driver()
    sneaky = msgspec.structs.replace(message("a"), properties=fake.ljust(HEAD_BYTES, b"\0"))
    driver.hold("t", sneaky, message("b"))
    data = driver.store.log.read(driver.half(1).location - HEAD_BYTES, HEAD_BYTES)
    assert data.startswith(MAGIC)
    assert driver.store.table.identity(driver.half(1)) == ("", UNNUMBERED)


def test_a_request_that_was_carried_forward_is_still_known() -> None:
    driver = Driver()
    driver.hold("t", message("a"), message("b"), number=0)
    driver.hold("t", message("c"), number=1)
    driver.clock.advance(ms=2 * HOUR)
    driver.commit(0)
    for row, number in ((0, 0), (2, 1)):
        half = driver.half(row)
        assert half.location != half.log_offset
        assert driver.store.table.identity(half) == ("t", number)


def test_a_scheduled_message_belongs_to_no_transaction() -> None:
    driver = Driver()
    driver.do(Append(messages=(message("x", deliver_at_ms=T0 + 5),)))
    assert driver.store.table.identity(driver.half(0)) == ("", UNNUMBERED)


def test_identities_that_were_just_written_are_known_without_reading_up_to_a_limit(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "REMEMBERED_MAX", 2)
    reading = driver.store.reading
    halves = [driver.half(driver.hold(f"t{number}").half_offset) for number in range(3)]
    for number, half in enumerate(halves):
        reading.remember(half.half_offset, f"remembered {number}", number)
    read = [reading.identity(half) for half in halves]
    assert read == [("t0", UNNUMBERED), ("remembered 1", 1), ("remembered 2", 2)]
