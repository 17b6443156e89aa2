"""From records to queues: in log order, in slices, and never ahead of the flush."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.store.queue.dispatch import SLICE_ROWS
from escrowmq.transaction.commands import Append, AttemptClaim, DecideBatch, End, Prepare
from tests.unit.store.helpers import T0, Driver, message


def ends(driver: Driver, queues: int) -> list[int]:
    return [driver.store.queues[number].end for number in range(queues)]


def test_queues_fill_in_the_order_of_the_log() -> None:
    driver = Driver()
    store = driver.store
    store.execute(Append(messages=(message("1"), message("2", queue_id=1), message("3"))), T0)
    prepare = Prepare(
        group="g",
        transaction_id="t",
        messages=(message("4"), message("5", queue_id=1), message("6"), message("7", queue_id=1)),
    )
    store.execute(prepare, T0)
    store.execute(Append(messages=(message("8"),)), T0)
    store.execute(End(half_offset=0, resolution=Resolution.COMMIT, by="p"), T0)
    store.execute(Append(messages=(message("9"), message("10"))), T0)
    store.sync()
    assert driver.bodies() == ["1", "3", "8", "4", "6", "9", "10"]
    assert driver.bodies(queue_id=1) == ["2", "5", "7"]
    for queue_id in (0, 1):
        offsets = [one.queue_offset for one in driver.messages(queue_id=queue_id)]
        assert offsets == list(range(len(offsets)))


def test_messages_of_one_request_to_many_queues_keep_their_order_in_each() -> None:
    driver = Driver()
    driver.append(message("before", queue_id=2))
    queues = [2, 0, 1, 0, 2, 2, 1, 0]
    driver.append(*(message(f"{at}", queue_id=queue) for at, queue in enumerate(queues)))
    for queue_id in range(3):
        expected = [f"{at}" for at, queue in enumerate(queues) if queue == queue_id]
        assert driver.bodies(queue_id=queue_id)[-len(expected) :] == expected


def test_a_rolled_back_transaction_gives_no_offsets() -> None:
    driver = Driver()
    driver.hold("t", message("a"), message("b", queue_id=1))
    driver.roll_back(0)
    assert ends(driver, 2) == [0, 0]
    assert driver.append(message("c")).queue_offsets == [0]


def test_a_large_batch_becomes_visible_in_slices_and_in_order() -> None:
    """A queue's end advances only over filled entries."""
    driver = Driver(chunk_rows=65_536, segment_bytes_max=2**26)
    count = 30_000
    for number in range(3):
        messages = [message(b"%d" % (number * count + at), queue_id=at % 2) for at in range(count)]
        driver.hold("attempt", *messages, number=number, bulk=True)
    assert 3 * count > SLICE_ROWS
    claim = AttemptClaim(transaction_id="attempt", last_number=2, rows=3 * count)
    command = DecideBatch(app_id="a", query_id="q", batch_id=1, attempts=(claim,), by="spark")
    driver.store.execute(command, T0)
    driver.store.execute(Append(messages=(message("after"),)), T0)
    driver.store.write()
    driver.store.flush()
    seen = [ends(driver, 2)]
    while not driver.store.dispatcher.is_idle:
        with pytest.raises(AssertionError, match="only what is visible"):
            driver.store.begin_checkpoint()
        assert driver.store.publish()
        seen.append(ends(driver, 2))
    assert seen[0] == [0, 0]
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == [3 * count // 2 + 1, 3 * count // 2]
    pulled = driver.reader.pull("orders", 0, 0, count_max=10**6, bytes_max=2**40)
    assert len(pulled.messages) == 3 * count // 2 + 1
    entries = driver.store.queues[1].entries(0, 10**6)
    assert [one.log_offset for one in entries] == sorted(one.log_offset for one in entries)
