"""Ranges of the log that are lost."""

from __future__ import annotations

from escrowmq.store.queue.lost import SLICE_ENTRIES, LostRanges, places, skipped
from escrowmq.transaction.core import Where

WHERE = Where(100, 144, 1_700_000_000_000)


def test_an_offset_is_lost_from_the_start_of_a_range_to_before_its_end() -> None:
    lost = LostRanges()
    assert not lost.hold(0)
    lost.add(300, 400)
    lost.add(100, 150)
    lost.add(300, 400)
    assert lost.ranges == [(100, 150), (300, 400)]
    assert [offset for offset in range(0, 500, 50) if lost.hold(offset)] == [100, 300, 350]
    assert lost.hold(149)
    assert lost.hold(399)


def test_places_point_at_the_frame_that_lost_them_and_have_no_size() -> None:
    columns = places(2, WHERE)
    assert list(columns.log_offsets) == [100, 100]
    assert list(columns.sizes) == list(columns.crcs) == list(columns.tags) == [0, 0]
    assert list(columns.visible_at_ms) == [WHERE.at_ms] * 2


def test_many_places_come_in_slices() -> None:
    blocks = [block for (block,) in skipped(3, 5, 5 + SLICE_ENTRIES + 1, WHERE)]
    assert [(queue, first) for queue, first, _ in blocks] == [(3, 5), (3, 5 + SLICE_ENTRIES)]
    assert list(skipped(3, 5, 5, WHERE)) == []
