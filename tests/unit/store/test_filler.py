"""Frames that replace damaged bytes have exactly their length, however long or short."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.log.frames import FRAME_BYTES_MAX, Frame, read_frame
from escrowmq.store.repair.filler import BYTES_MIN, Filler, fillers
from escrowmq.store.repair.inspect import Inspection
from escrowmq.store.repair.report import BadRange, NumberGap, RangeKind, StoreReport
from escrowmq.transaction.records import Lost, NamedOrigin, NamedQueue

SEED = 7


def place(length: int, log_offset: int = 1_000) -> BadRange:
    return BadRange(
        segment="commitlog/0",
        log_offset=log_offset,
        length=length,
        kind=RangeKind.DAMAGED,
        stored_at_ms=1_700_000_000_000,
    )


def inspection(*places: BadRange, gaps: tuple[NumberGap, ...] = ()) -> Inspection:
    report = StoreReport(version=1, ranges=list(places), gaps=list(gaps))
    return Inspection(report=report, seed=SEED, flushed=0, checkpoint=None, queues={}, origins={})


def read(filler: Filler) -> list[Frame]:
    frames = []
    for log_offset, data in filler.frames(SEED):
        frame = read_frame(data, 0, log_offset, SEED)
        assert frame is not None
        assert frame.length == len(data)
        frames.append(frame)
    return frames


@pytest.mark.parametrize("length", [*range(BYTES_MIN, 130), 5_000, 70_000])
def test_any_length_is_filled_by_one_frame(length: int) -> None:
    (frame,) = read(Filler(place(length), 0))
    assert (frame.log_offset, frame.end) == (1_000, 1_000 + length)
    assert frame.records == [Lost(length)]
    assert frame.stored_at_ms == 1_700_000_000_000
    assert frame.flushed == frame.log_offset


@pytest.mark.parametrize("more", [1, BYTES_MIN - 1, BYTES_MIN, 5_000])
def test_a_range_larger_than_a_frame_is_filled_by_several(more: int) -> None:
    frames = read(Filler(place(FRAME_BYTES_MAX + more), 0, rows_end=5))
    assert len(frames) == 2
    assert frames[1].log_offset == frames[0].end
    assert frames[1].end == 1_000 + FRAME_BYTES_MAX + more
    assert frames[0].records == [Lost(frames[0].length, 5)]
    assert frames[1].records == [Lost(frames[1].length)]


def test_a_range_is_divided_where_the_next_start_writes_the_log_again() -> None:
    frames = read(Filler(place(300), 1_100))
    assert [(frame.log_offset, frame.end) for frame in frames] == [(1_000, 1_100), (1_100, 1_300)]


def test_it_says_what_its_place_had_given() -> None:
    queue, origin = NamedQueue(0, "orders", 1), NamedOrigin(0, "shop", "", 0)
    filler = Filler(place(300), 0, [queue, origin], 7, {0: 3, 2: 9})
    assert read(filler)[0].records == [queue, origin, Lost(300, 7, [(0, 3), (2, 9)])]


def test_a_range_shorter_than_any_frame_is_refused() -> None:
    with pytest.raises(StoreCorrupt) as refused:
        fillers(inspection(place(BYTES_MIN - 1)))
    assert refused.value.code == "repair_impossible"
    assert refused.value.fields["log_offset"] == 1_000


def test_more_than_a_range_can_have_given_is_refused() -> None:
    gaps = tuple(
        NumberGap(what="queue", queue=queue, expected=0, found=1, after=0, before=2_000)
        for queue in range(10)
    )
    with pytest.raises(StoreCorrupt, match="repair_impossible"):
        fillers(inspection(place(BYTES_MIN + 5), gaps=gaps))


def test_numbers_fill_the_places_with_room_first() -> None:
    places = place(52, 1_000), place(400, 2_000), place(100, 3_000), place(400, 9_000)
    gaps = (
        NumberGap(what="half", expected=3, found=5, after=500, before=4_000),
        NumberGap(what="queue", queue=1, expected=0, found=2, after=500, before=4_000),
        NumberGap(what="queue_name", expected=0, found=2, after=500, before=4_000),
        NumberGap(what="origin", expected=0, found=1, after=500, before=4_000),
    )
    tiny, roomy, small, other = fillers(inspection(*places, gaps=gaps))
    assert [named.id for named in roomy.names] == [0, 0, 1]
    assert (roomy.rows_end, roomy.queue_ends) == (5, {1: 2})
    assert (small.rows_end, small.queue_ends) == (5, {1: 2})
    assert (tiny.rows_end, tiny.names) == (5, [])
    assert (other.rows_end, other.queue_ends, other.names) == (-1, {}, [])


def test_names_are_given_in_the_order_of_their_numbers() -> None:
    """A later name never goes before an earlier one, even if there is more room."""
    places = place(400, 1_000), place(420, 2_000)
    gaps = tuple(
        NumberGap(what="queue_name", expected=at, found=at + 1, after=0, before=3_000)
        for at in range(9)
    )
    made = fillers(inspection(*places, gaps=gaps))
    for filler in made:
        numbers = [named.id for named in filler.names]
        assert numbers == sorted(numbers)
    assert [named.id for named in made[1].names] == list(range(9))
