"""Messages gathered from blocks of the log equal those in the log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.log import blocks as log_blocks
from escrowmq.store.log.blocks import LogBlocks
from escrowmq.store.reading.bulk_reading import read_stored
from tests.unit.store.helpers import Driver, message

QUEUES = 4


def filled(count: int = 40, *, largest: int = 7) -> Driver:
    """Messages of four queues in turn, in several segments."""
    driver = Driver()
    for number in range(count):
        body = b"x" * (number % 7 or largest)
        driver.append(*(message(body, queue_id=queue_id) for queue_id in range(QUEUES)))
    assert len(driver.store.log.segments) > 2
    return driver


def places(driver: Driver, queue_id: int) -> tuple[np.ndarray, np.ndarray]:
    queue = driver.reader.queue("orders", queue_id)
    assert queue is not None
    rows = queue.rows(0, queue.end)
    return rows["log_offset"], rows["size"].astype(np.int64)


def expected(driver: Driver, offsets: np.ndarray, sizes: np.ndarray) -> bytes:
    pairs = zip(offsets.tolist(), sizes.tolist(), strict=True)
    return b"".join(driver.store.log.read(offset, size) for offset, size in pairs)


@pytest.mark.parametrize("block_bytes", [300, 1_000, 2**18])
@pytest.mark.parametrize("blocks_max", [1, 3, 64])
# With messages of similar size, and with some large ones.
@pytest.mark.parametrize("largest", [7, 3_000])
def test_records_are_gathered_as_they_are(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int, blocks_max: int, largest: int
) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", block_bytes)
    driver = filled(largest=largest)
    blocks = LogBlocks(driver.store.log, blocks_max=blocks_max)
    for _ in range(2):
        for queue_id in range(QUEUES):
            offsets, sizes = places(driver, queue_id)
            assert bytes(blocks.gather(offsets, sizes)) == expected(driver, offsets, sizes)
        # The block at the end of the log is longer now than when it was read.
        driver.append(*(message("more", queue_id=queue_id) for queue_id in range(QUEUES)))


@given(st.data())
def test_records_come_in_the_order_that_is_asked_for(data: st.DataObject) -> None:
    """Transactions become visible in the order of their decisions."""
    driver = filled(24, largest=data.draw(st.sampled_from([7, 3_000])))
    offsets, sizes = places(driver, 0)
    rows = data.draw(st.lists(st.sampled_from(range(len(offsets))), min_size=1, unique=True))
    some = np.array(rows)
    gathered = LogBlocks(driver.store.log).gather(offsets[some], sizes[some])
    assert bytes(gathered) == expected(driver, offsets[some], sizes[some])


def test_queues_side_by_side_are_read_from_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", 4_096)
    monkeypatch.setattr(log_blocks, "MARGIN_BYTES", 1_024)
    driver = Driver(segment_bytes_max=10**6)
    for _ in range(100):
        driver.append(*(message(bytes(200), queue_id=queue_id) for queue_id in range(QUEUES)))
    log = driver.store.log
    read_bytes: list[int] = []
    peek = log.peek

    def noted(log_offset: int, size: int) -> bytes:
        found = peek(log_offset, size)
        read_bytes.append(len(found))
        return found

    monkeypatch.setattr(log, "peek", noted)
    blocks = LogBlocks(log)
    for queue_id in range(QUEUES):
        queue = driver.reader.queue("orders", queue_id)
        assert queue is not None
        found = read_stored(
            driver.store, queue, 0, queue.end, count_max=1_000, bytes_max=2**20, blocks=blocks
        )
        assert bytes(found.records) == expected(driver, *places(driver, queue_id))
    # Except for the margins, and the last block, which may still grow.
    assert sum(read_bytes) < 1.5 * log.end
    blocks.forget()
    read_bytes.clear()
    blocks.gather(*places(driver, 0))
    assert sum(read_bytes) > log.end


@pytest.mark.parametrize("blocks_max", [1, 3, 64])
def test_no_more_is_kept_than_may_be(monkeypatch: pytest.MonkeyPatch, blocks_max: int) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", 1_024)
    monkeypatch.setattr(log_blocks, "MARGIN_BYTES", 1_024)
    driver = Driver(segment_bytes_max=10**6)
    for _ in range(30):
        driver.append(*(message(bytes(200), queue_id=queue_id) for queue_id in range(QUEUES)))
    blocks = LogBlocks(driver.store.log, blocks_max=blocks_max)
    for queue_id in range(QUEUES):
        offsets, sizes = places(driver, queue_id)
        assert bytes(blocks.gather(offsets, sizes)) == expected(driver, offsets, sizes)
    # The last two blocks may still grow.
    assert len(blocks._held) == min(blocks_max, driver.store.log.end // 1_024 - 1)


def test_a_log_that_is_too_short_says_so() -> None:
    driver = filled()
    offsets, sizes = places(driver, 0)
    segment = driver.store.log.segments[0]
    segment.file.truncate(segment.size // 2)
    with pytest.raises(StoreCorrupt, match="log_too_short"):
        LogBlocks(driver.store.log).gather(offsets, sizes)


def test_large_messages_are_read_past_the_blocks() -> None:
    driver = Driver(segment_bytes_max=10**6)
    for number in range(3):
        for queue_id in range(2):
            body = bytes(log_blocks.MARGIN_BYTES + number)
            driver.append(message(body, queue_id=queue_id))
    queue = driver.reader.queue("orders", 0)
    assert queue is not None
    blocks = LogBlocks(driver.store.log)
    found = read_stored(
        driver.store, queue, 0, queue.end, count_max=10, bytes_max=2**20, blocks=blocks
    )
    assert bytes(found.records) == expected(driver, *places(driver, 0))
