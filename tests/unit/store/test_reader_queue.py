"""Reading a queue by offset and by time, with limits, and with the reader's position."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import tags_code
from escrowmq.protocol.message.stored_message import SYS_COMMITTED, SYS_TRANSACTION_MASK, decode
from escrowmq.store.reading import reader
from escrowmq.store.reading.reader import Pulled, ReadStatus
from escrowmq.transaction.commands import Append, End, Prepare
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, T0, Driver, message


def pull(driver: Driver, offset: int, *, count_max: int = 100, bytes_max: int = 10**6) -> Pulled:
    return driver.reader.pull("orders", 0, offset, count_max=count_max, bytes_max=bytes_max)


def bodies(pulled: Pulled) -> list[str]:
    return [decode(one).body.decode() for one in pulled.messages]


@pytest.fixture
def driver() -> Driver:
    """Five messages, one per second."""
    driver = Driver()
    for number in range(5):
        driver.append(message(f"m{number}"))
        driver.clock.advance(ms=SECOND)
    return driver


# The reader's position


def test_an_unused_queue_is_unknown(driver: Driver) -> None:
    pulled = driver.reader.pull("orders", 9, 0, count_max=1, bytes_max=1)
    assert pulled == Pulled(status=ReadStatus.NO_SUCH_QUEUE)
    assert driver.reader.offset_at("orders", 9, 0) is None
    assert driver.reader.queue("nothing", 0) is None


def test_messages_are_read_from_any_offset_on(driver: Driver) -> None:
    pulled = pull(driver, 2)
    assert pulled.status is ReadStatus.FOUND
    assert bodies(pulled) == ["m2", "m3", "m4"]
    assert (pulled.next_offset, pulled.start, pulled.end) == (5, 0, 5)


def test_the_end_has_nothing_new_and_beyond_it_is_wrong(driver: Driver) -> None:
    assert pull(driver, 5) == Pulled(status=ReadStatus.NOTHING_NEW, next_offset=5, end=5)
    assert pull(driver, 6) == Pulled(status=ReadStatus.BEYOND_END, next_offset=5, end=5)
    assert pull(driver, 10**15).status is ReadStatus.BEYOND_END


def test_before_the_start_is_behind(driver: Driver) -> None:
    assert pull(driver, -1) == Pulled(status=ReadStatus.BEHIND_START, next_offset=0, end=5)


def test_a_pull_is_limited_by_count(driver: Driver) -> None:
    pulled = pull(driver, 1, count_max=2)
    assert bodies(pulled) == ["m1", "m2"]
    assert pulled.next_offset == 3


def test_a_pull_is_limited_by_bytes_but_brings_at_least_one(driver: Driver) -> None:
    size = len(pull(driver, 0, count_max=1).messages[0])
    assert bodies(pull(driver, 1, bytes_max=0)) == ["m1"]
    assert bodies(pull(driver, 1, bytes_max=2 * size - 1)) == ["m1"]
    assert bodies(pull(driver, 1, bytes_max=2 * size)) == ["m1", "m2"]


@pytest.mark.parametrize("is_filed", [False, True])
def test_queues_read_the_same_from_memory_and_from_files(driver: Driver, *, is_filed: bool) -> None:
    if is_filed:
        driver.store.checkpoint()
        driver.append(message("m5"))
    expected = [f"m{number}" for number in range(6 if is_filed else 5)]
    assert bodies(pull(driver, 0)) == expected
    assert [one.queue_offset for one in driver.messages()] == list(range(len(expected)))


# Messages that are not durable are not visible


def test_nothing_is_seen_before_it_is_flushed(driver: Driver) -> None:
    driver.store.execute(Append(messages=(message("new"),)), driver.clock.now_ms())
    assert pull(driver, 5).status is ReadStatus.NOTHING_NEW
    assert driver.store.publish() == set()
    driver.store.write()
    # A call that is too early, as when a checkpoint ends during a flush.
    assert driver.store.publish() == set()
    assert pull(driver, 5).status is ReadStatus.NOTHING_NEW
    driver.store.flush()
    assert driver.store.publish() == {0}
    assert bodies(pull(driver, 5)) == ["new"]


def test_with_durability_os_it_is_seen_once_the_system_has_it() -> None:
    driver = Driver(durability="os")
    driver.store.execute(Append(messages=(message("new"),)), driver.clock.now_ms())
    assert driver.store.publish() == set()
    driver.store.write()
    assert driver.store.publish() == {0}
    assert bodies(pull(driver, 0)) == ["new"]
    assert driver.store.log.flushed == 0


def test_a_new_queue_is_not_there_until_its_first_message_is_flushed(driver: Driver) -> None:
    command = Append(messages=(message("new", topic="fresh"),))
    driver.store.execute(command, driver.clock.now_ms())
    pulled = driver.reader.pull("fresh", 0, 0, count_max=1, bytes_max=1)
    assert pulled.status is ReadStatus.NO_SUCH_QUEUE
    driver.store.sync()
    assert driver.bodies("fresh") == ["new"]


# Committed half messages


def test_a_committed_half_is_seen_as_the_commit_made_it(driver: Driver) -> None:
    held = driver.hold("t", message("half", tags="paid", keys="k1 k2"))
    driver.clock.advance(ms=7)
    assert driver.bodies()[5:] == []
    driver.commit(held.half_offset)
    seen = driver.messages()[5]
    assert (seen.topic, seen.queue_id, seen.body) == ("orders", 0, b"half")
    assert seen.queue_offset == 5
    assert seen.sys_flag & SYS_TRANSACTION_MASK == SYS_COMMITTED
    assert seen.stored_at_ms == driver.clock.now_ms()
    assert seen.prepared_offset == seen.log_offset == held.log_offsets[0]
    assert b"paid" in seen.properties


def test_half_messages_become_visible_in_the_order_of_their_commits(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.hold(name)
    for row in (2, 0, 1):
        driver.commit(row)
    assert driver.bodies()[5:] == ["c", "a", "b"]


def test_a_rolled_back_half_is_never_seen(driver: Driver) -> None:
    driver.hold("t")
    driver.roll_back(0)
    assert driver.bodies()[5:] == []
    assert driver.closed_and_opened().bodies()[5:] == []


def test_one_commit_shows_all_halves_of_a_transaction_in_their_queues() -> None:
    driver = Driver()
    driver.hold("t", message("a"), message("b", queue_id=1), message("c"), message("d", topic="x"))
    driver.commit(0)
    assert driver.bodies() == ["a", "c"]
    assert driver.bodies(queue_id=1) == ["b"]
    assert driver.bodies("x") == ["d"]


# By time


def test_an_offset_is_found_by_the_time_at_which_it_became_visible(driver: Driver) -> None:
    find = driver.reader.offset_at
    assert find("orders", 0, 0) == 0
    assert find("orders", 0, T0 + 2 * SECOND) == 2
    assert find("orders", 0, T0 + 2 * SECOND + 1) == 3
    assert find("orders", 0, T0 + HOUR) == 5


def test_the_time_of_a_half_is_that_of_its_commit(driver: Driver) -> None:
    driver.hold("t")
    driver.clock.advance(ms=MINUTE)
    driver.commit(0)
    assert driver.reader.offset_at("orders", 0, driver.clock.now_ms()) == 5
    assert driver.reader.offset_at("orders", 0, driver.clock.now_ms() + 1) == 6


def test_times_never_go_back_even_if_the_clock_does(driver: Driver) -> None:
    driver.hold("t")
    latest_ms = driver.clock.now_ms()
    driver.clock.set(T0 - HOUR)
    driver.commit(0)
    driver.append(message("later"))
    driver = driver.closed_and_opened()
    driver.append(message("after a restart"))
    times = [one.stored_at_ms for one in driver.messages()]
    assert times == sorted(times)
    assert times[5:] == [latest_ms] * 3
    assert driver.commit(0).at_ms == latest_ms
    driver.clock.set(latest_ms + 5)
    driver.append(message("the clock is right again"))
    assert driver.messages()[-1].stored_at_ms == latest_ms + 5


def test_checks_are_counted_from_the_time_that_never_goes_back(driver: Driver) -> None:
    latest_ms = driver.store.last_at_ms
    driver.clock.set(T0 - HOUR)
    driver.hold("t")
    assert driver.half(0).stored_at_ms == latest_ms
    assert driver.half(0).next_at_ms == latest_ms + driver.policy.check_after_ms


def test_commands_of_one_batch_see_each_other() -> None:
    driver = Driver()
    store, now_ms = driver.store, driver.clock.now_ms()
    store.execute(Prepare(group="g", transaction_id="t", messages=(message("x"),)), now_ms)
    store.execute(End(half_offset=0, resolution=Resolution.COMMIT, by="p"), now_ms)
    again = store.execute(End(half_offset=0, resolution=Resolution.ROLLBACK, by="q"), now_ms)
    assert again.refused is not None
    assert again.refused.fields["by"] == "p"
    assert driver.messages() == []
    store.sync()
    assert driver.bodies() == ["x"]


# Filtered by tags


def tagged(*tags: str) -> Driver:
    driver = Driver()
    for number, tag in enumerate(tags):
        driver.append(message(f"m{number}", tags=tag))
    return driver


def wanted(driver: Driver, offset: int, *tags: str, count_max: int = 100) -> Pulled:
    codes = set(map(tags_code, tags))
    return driver.reader.pull(
        "orders", 0, offset, count_max=count_max, bytes_max=10**6, codes=codes
    )


def test_a_pull_brings_only_the_tags_that_are_wanted_and_goes_on_after_the_others() -> None:
    driver = tagged("a", "b", "", "a", "b")
    pulled = wanted(driver, 0, "a")
    assert (bodies(pulled), pulled.next_offset) == (["m0", "m3"], 5)
    assert [decode(one).queue_offset for one in pulled.messages] == [0, 3]
    pulled = wanted(driver, 1, "a", "b", count_max=1)
    assert (bodies(pulled), pulled.next_offset) == (["m1"], 3)


def test_a_pull_that_finds_none_wanted_says_so_and_goes_on() -> None:
    driver = tagged("a", "b", "c")
    pulled = wanted(driver, 1, "a")
    assert (pulled.status, pulled.messages, pulled.next_offset) == (ReadStatus.NO_MATCH, [], 3)


def test_a_pull_that_filters_looks_at_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FILTERED_MAX", 2)
    driver = tagged("a", "a", "b")
    assert wanted(driver, 0, "b").next_offset == 2
    assert bodies(wanted(driver, 2, "b")) == ["m2"]


# As written


def test_messages_are_read_as_they_were_written_in_bounds(driver: Driver) -> None:
    queue = driver.reader.queue("orders", 0)
    assert queue is not None
    found, after = driver.reader.stored(queue, 1, 4, count_max=10, bytes_max=10**6)
    assert [(one.queue_offset, one.visible_at_ms) for one in found] == [
        (number, T0 + number * SECOND) for number in (1, 2, 3)
    ]
    assert [decode(one.record).body for one in found] == [b"m1", b"m2", b"m3"]
    assert after == 4
    assert driver.reader.stored(queue, 0, 5, count_max=2, bytes_max=10**6)[1] == 2
    # At least one message, however large.
    assert driver.reader.stored(queue, 0, 5, count_max=9, bytes_max=1)[1] == 1
    assert driver.reader.stored(queue, 3, 2, count_max=9, bytes_max=1) == ([], 3)


def test_lost_messages_are_passed_over_when_reading_as_written(driver: Driver) -> None:
    queue = driver.reader.queue("orders", 0)
    assert queue is not None
    entry = queue.entries(2, 1)[0]
    driver.store.lost.add(entry.log_offset, entry.log_offset + entry.size)
    found, after = driver.reader.stored(queue, 1, 5, count_max=10, bytes_max=10**6)
    assert [one.queue_offset for one in found] == [1, 3, 4]
    assert after == 5
