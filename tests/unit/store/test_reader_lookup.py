"""Finding single messages: by log offset, by key, by message id, by transaction."""

from __future__ import annotations

from zlib import crc32

import pytest

from escrowmq.protocol.message.stored_message import (
    SYS_PREPARED,
    SYS_TRANSACTION_MASK,
    StoredMessage,
    decode,
    encode,
)
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.store.reading import reader
from escrowmq.store.reading.reader import Located
from escrowmq.transaction.commands import Append, Park
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOST, HOUR, MINUTE, SECOND, T0, Driver, message

#: Two strings with the same CRC-32, found by trial.
TWINS = ("plumless", "buckeroo")


def located(driver: Driver, log_offset: int) -> Located:
    found = driver.reader.at(log_offset)
    assert found is not None
    return found


def seen(driver: Driver, log_offset: int) -> StoredMessage:
    found = located(driver, log_offset)
    assert found.is_visible
    return decode(found.message)


def found_bodies(driver: Driver, key: str, topic: str = "orders", limit: int = 10) -> list[str]:
    found = driver.reader.find(topic, key, limit=limit)
    return [decode(one).body.decode() for one in found]


# By log offset


def test_an_ordinary_message_is_found_as_it_was_written() -> None:
    driver = Driver()
    offsets = driver.append(message("a"), message("b", queue_id=1)).log_offsets
    for offset, queue_id in zip(offsets, (0, 1), strict=True):
        found = located(driver, offset)
        assert found.half is None
        assert decode(found.message) == driver.messages(queue_id=queue_id)[0]


def test_a_committed_half_is_found_as_consumers_see_it() -> None:
    driver = Driver()
    offsets = driver.hold("t", message("a"), message("b"), message("c", queue_id=1)).log_offsets
    driver.clock.advance(ms=SECOND)
    driver.commit(0)
    assert [seen(driver, offset) for offset in offsets[:2]] == driver.messages()
    assert seen(driver, offsets[2]) == driver.messages(queue_id=1)[0]
    half = located(driver, offsets[1]).half
    assert half is not None
    assert half.state is State.COMMITTED


def test_a_commit_among_many_at_the_same_time_is_found_in_its_place() -> None:
    driver = Driver(chunk_rows=1024)
    for number in range(700):
        driver.store.execute(Append(messages=(message(f"m{number}"),)), driver.clock.now_ms())
    held = driver.hold("t")
    driver.commit(0)
    driver.append(message("after"))
    assert seen(driver, held.log_offsets[0]).queue_offset == 700


@pytest.mark.parametrize("state", [State.PREPARED, State.PARKED, State.ROLLED_BACK])
def test_an_uncommitted_message_is_found_as_a_half_only(state: State) -> None:
    driver = Driver()
    offset = driver.hold("t").log_offsets[0]
    if state is State.PARKED:
        driver.do(Park(half_offset=0, reason="by hand"))
    elif state is State.ROLLED_BACK:
        driver.roll_back(0)
    found = located(driver, offset)
    assert not found.is_visible
    assert found.half is not None
    assert found.half.state is state
    assert decode(found.message).sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED


def test_no_offset_within_a_message_or_frame_is_a_message() -> None:
    driver = Driver()
    # One body looks like a stored message of this very queue, and one like a frame.
    fake = encode(message("fake"), 0, 0, T0, HOST)
    known = {
        *driver.append(message(fake), message("EMQF" + "\0" * 60)).log_offsets,
        *driver.hold("t", message(fake), message(fake)).log_offsets,
    }
    driver.commit(0)
    for offset in range(-5, driver.store.log.end + 5):
        found = driver.reader.at(offset)
        assert (found is not None) == (offset in known), offset
        if found is not None:
            assert b"fake" not in decode(found.message).body[:4]


def test_a_message_that_claims_another_place_is_not_believed() -> None:
    """Even if its queue and offset exist: the queue determines where its messages are."""
    driver = Driver()
    driver.append(message("real"))
    fake = encode(message("fake"), 0, driver.store.log.end + 44 + 88, T0, HOST)
    driver.append(message(fake))
    at = driver.store.log.read(0, driver.store.log.end).index(fake)
    assert driver.reader.at(at) is None


@pytest.mark.parametrize(
    ("place", "garbage"),
    [
        (0, b"\x7f\xff\xff\xff"),  # a size in gigabytes
        (0, b"\0\0\0\x5a"),  # smaller than any message
        (4, b"\0\0\0\0"),  # neither layout
    ],
)
def test_garbage_that_knows_where_it_is_is_not_read(place: int, garbage: bytes) -> None:
    driver = Driver()
    at = HEAD_BYTES + len(encode(message(""), 0, 0, T0, HOST)) - len("orders") - 3
    record = bytearray(encode(message("x"), 0, at, T0, HOST))
    record[place : place + 4] = garbage
    driver.append(message(bytes(record)))
    assert driver.store.log.read(at, len(record)) == record
    assert driver.reader.at(at) is None


def test_nothing_is_found_before_it_is_flushed() -> None:
    driver = Driver()
    driver.store.execute(Append(messages=(message("x", keys="k"),)), T0)
    driver.store.write()
    assert driver.reader.at(44) is None
    assert found_bodies(driver, "k") == []
    driver.store.sync()
    assert driver.reader.at(44) is not None
    assert found_bodies(driver, "k") == ["x"]


def test_a_delayed_half_is_found_before_and_after_its_time() -> None:
    driver = Driver()
    offset = driver.hold("t", message("x", deliver_after_ms=MINUTE)).log_offsets[0]
    driver.commit(0)
    assert not located(driver, offset).is_visible
    for number in range(3):
        driver.append(message(f"between {number}"))
    driver.clock.advance(ms=MINUTE)
    driver.release()
    assert seen(driver, offset) == driver.messages()[3]
    assert seen(driver, offset).stored_at_ms == driver.clock.now_ms()


def test_a_delayed_half_is_found_behind_very_many_others() -> None:
    driver = Driver(segment_bytes_max=2**26, chunk_rows=65_536)
    offset = driver.hold("t", message("x", deliver_after_ms=MINUTE)).log_offsets[0]
    driver.commit(0)
    for _ in range(3):
        driver.append(*[message("")] * 30_000)
    driver.clock.advance(ms=MINUTE)
    driver.release()
    for _ in range(2):
        assert seen(driver, offset).queue_offset == 90_000
        driver.store.checkpoint()


def test_a_scheduled_message_is_found_before_and_after_its_time() -> None:
    driver = Driver()
    offset = driver.append(message("x", deliver_at_ms=T0 + MINUTE)).log_offsets[0]
    assert not located(driver, offset).is_visible
    driver.append(message("first"))
    driver.clock.advance(ms=MINUTE)
    driver.release()
    assert seen(driver, offset) == driver.messages()[1]
    assert seen(driver, offset).queue_offset == 1


def test_a_copied_half_is_found_where_it_was_sent_and_not_where_its_copy_is() -> None:
    driver = Driver()
    offset = driver.hold("t").log_offsets[0]
    driver.clock.advance(ms=2 * HOUR)
    driver.commit(0)
    assert driver.half(0).location != offset
    assert seen(driver, offset) == driver.messages()[0]
    assert driver.reader.at(driver.half(0).location) is None


def test_a_message_that_its_queue_forgot_is_not_found_although_its_bytes_exist() -> None:
    driver = Driver(retention_bytes=6_000)
    driver.hold("old")
    driver.roll_segment()
    young = driver.hold("young").log_offsets[0]
    ordinary = driver.append(message("ordinary")).log_offsets[0]
    driver.commit(1)
    driver.commit(0)
    driver.roll_segment()
    driver.retain()
    assert driver.bodies() == []
    assert driver.store.log.start < young
    assert driver.reader.at(young) is None
    assert driver.reader.at(ordinary) is None


def test_deleted_messages_are_not_found() -> None:
    driver = Driver()
    offsets = [
        driver.append(message("a", keys="k")).log_offsets[0],
        driver.hold("t", message("b", keys="k")).log_offsets[0],
    ]
    driver.commit(0)
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    assert driver.retain().segments == 1
    assert [driver.reader.at(offset) for offset in offsets] == [None, None]
    assert found_bodies(driver, "k") == []
    assert driver.reader.find_transaction("t") is None


# By key and by message id


def test_messages_are_found_by_each_key_and_by_message_id_newest_first() -> None:
    driver = Driver()
    driver.append(message("a", keys="k1 k2", unique_key="id-a"))
    driver.append(message("b", keys="k2", unique_key="id-b"), message("c", keys="k2"))
    assert found_bodies(driver, "k2") == ["c", "b", "a"]
    assert found_bodies(driver, "k1") == ["a"]
    assert found_bodies(driver, "id-b") == ["b"]
    assert found_bodies(driver, "k3") == []


def test_a_message_without_a_key_is_not_found_by_none() -> None:
    driver = Driver()
    driver.append(message("keyless"))
    assert found_bodies(driver, "") == []


def test_keys_are_found_after_checkpoints_and_restarts() -> None:
    driver = Driver()
    driver.append(message("filed", keys="k"))
    driver.store.checkpoint()
    driver.append(message("new", keys="k"))
    assert found_bodies(driver, "k") == ["new", "filed"]
    assert found_bodies(driver.crashed(), "k") == ["new", "filed"]


def test_only_the_topic_that_was_asked_for_is_found() -> None:
    driver = Driver()
    driver.append(message("mine", keys="k"))
    driver.append(message("other", keys="k", topic="other"))
    assert found_bodies(driver, "k") == ["mine"]
    assert found_bodies(driver, "k", "other") == ["other"]
    assert found_bodies(driver, "k", "none") == []


def test_half_messages_are_found_by_key_once_they_are_committed() -> None:
    driver = Driver()
    for name in ("committed", "rolled back", "undecided"):
        driver.hold(name, message(name, keys="k"))
    driver.commit(0)
    driver.roll_back(1)
    assert found_bodies(driver, "k") == ["committed"]


def test_messages_that_may_become_visible_are_found_by_key_on_request() -> None:
    driver = Driver()
    driver.append(message("ordinary", keys="k"))
    for name in ("undecided", "rolled back", "parked"):
        driver.hold(name, message(name, keys="k"))
    driver.roll_back(1)
    driver.do(Park(half_offset=2, reason="exhausted"))
    found = driver.reader.find("orders", "k", limit=10, with_undecided=True)
    bodies = [decode(one).body.decode() for one in found]
    assert bodies == ["parked", "undecided", "ordinary"]


def test_keys_with_one_hash_are_told_apart() -> None:
    first, second = TWINS
    assert crc32(first.encode()) == crc32(second.encode())
    driver = Driver()
    driver.append(message("one", keys=first), message("two", keys=second))
    driver.append(message("three", unique_key=second))
    assert found_bodies(driver, first) == ["one"]
    assert found_bodies(driver, second) == ["three", "two"]


def test_others_with_the_same_hash_or_key_do_not_use_up_the_limit() -> None:
    driver = Driver()
    driver.append(message("wanted", keys="k"))
    for number in range(40):
        driver.append(message("other", keys="k", topic="other"))
        driver.hold(f"t{number}", message("undecided", keys="k"))
    assert found_bodies(driver, "k", limit=1) == ["wanted"]


def test_no_more_than_the_limit_is_found() -> None:
    driver = Driver()
    for number in range(5):
        driver.append(message(f"m{number}", keys="k"))
    assert found_bodies(driver, "k", limit=2) == ["m4", "m3"]
    assert found_bodies(driver, "k", limit=0) == []


def test_a_search_by_key_can_be_limited_in_time() -> None:
    driver = Driver()
    for number in range(5):
        driver.append(message(f"m{number}", keys="k"))
        driver.clock.advance(ms=SECOND)
    held = driver.hold("t", message("late", keys="k"))
    driver.clock.advance(ms=HOUR)
    driver.commit(held.half_offset)

    def found(from_ms: int, until_ms: int) -> list[str]:
        records = driver.reader.find("orders", "k", limit=9, from_ms=from_ms, until_ms=until_ms)
        return [decode(one).body.decode() for one in records]

    assert found(T0 + SECOND, T0 + 3 * SECOND) == ["m3", "m2", "m1"]
    assert found(T0 + HOUR, 2**62) == ["late"]
    assert found(T0 + 4 * SECOND, T0 + MINUTE) == ["m4"]


# By transaction


def test_the_newest_transaction_with_an_id_is_found_whatever_its_state() -> None:
    driver = Driver()
    driver.hold("t")
    driver.commit(0)
    again = driver.hold("t", message("another body"))
    driver.hold("u")
    found = driver.reader.find_transaction("t")
    assert found is not None
    assert found.half_offset == again.half_offset
    assert driver.reader.find_transaction("v") is None


def test_a_transaction_is_found_by_its_id_though_its_messages_have_others() -> None:
    driver = Driver()
    driver.hold("t", message("a", unique_key="m1"), message("b", unique_key="m2"))
    driver.commit(0)
    assert driver.reader.find_transaction("m2") is None
    found = driver.reader.find_transaction("t")
    assert found is not None
    assert found.half_offset == 0


def test_transactions_with_one_hash_are_told_apart() -> None:
    driver = Driver()
    for name in TWINS:
        driver.hold(name, number=0)
    for row, name in enumerate(TWINS):
        found = driver.reader.find_transaction(name)
        assert found is not None
        assert found.half_offset == row
        driver.commit(row)
    assert driver.bodies() == list(TWINS)


def test_an_id_that_shares_the_hash_of_deleted_ones_is_new() -> None:
    first, second = TWINS
    driver = Driver()
    driver.hold(first)
    driver.commit(0)
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    assert driver.retain().segments == 1
    assert driver.hold(second, number=0).half_offset == 1
    assert driver.hold(first).half_offset == 2


def test_of_a_key_that_very_many_have_the_newest_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    for number in range(5):
        driver.append(message(f"{number}", keys="all"))
    monkeypatch.setattr(reader, "LOOKED_MAX", 3)
    assert found_bodies(driver, "all") == ["4", "3", "2"]
