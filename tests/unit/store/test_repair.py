"""Repair removes damage from the log: nothing is deleted, and nothing else is lost."""

from __future__ import annotations

import json

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.reading.reader import ReadStatus, StoreReader
from escrowmq.store.repair.inspect import check
from escrowmq.store.repair.repair import Repaired, end_lost, repair
from escrowmq.store.repair.report import NumberSpan, RangeKind
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.states import State
from tests.unit.store.damage import damaged, end, frame_of, frames_of_rows, repaired
from tests.unit.store.shop import Shop, frames_of, opened, truth_of


def test_the_damaged_range_is_copied_aside_under_a_name_that_tells_where_it_was() -> None:
    shop = Shop()
    for _ in range(3):
        shop.prepare()
        shop.store.sync()
    frame = frame_of(shop, 1)
    disk = damaged(shop, frame)
    before = disk.snapshot()[segment_path(0)]
    _, aside, done = repaired(disk)
    copy = f"{segment_path(0)}.at-{frame.start}.length-{frame.end - frame.start}"
    assert [(one.path, one.copy) for one in done.copies] == [(segment_path(0), copy)]
    assert aside.durable_snapshot()[copy] == before[frame.start : frame.end]
    report = json.loads(aside.durable_snapshot()["report.json"])
    assert report["ranges"][0]["log_offset"] == frame.start
    assert done.filled == [NumberSpan(first=frame.start, count=frame.end - frame.start)]


def test_undamaged_bytes_stay_as_they_are() -> None:
    shop = Shop(seed=2).run(60, checkpoints=0)
    frame = frames_of(shop.store)[10]
    disk = damaged(shop, frame)
    before = disk.snapshot()
    repair(disk, FaultyDisk())
    after = disk.snapshot()
    segment = next(s for s in shop.store.log.segments if s.start <= frame.start < s.end)
    path = segment_path(segment.start)
    start, stop = frame.start - segment.start, frame.end - segment.start
    assert after[path][:start] == before[path][:start]
    assert after[path][stop:] == before[path][stop:]
    others = [name for name in before if name.startswith("commitlog") and name != path]
    assert all(after[name] == before[name] for name in others)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_the_other_transactions_are_all_there(is_checkpointed: bool) -> None:  # noqa: FBT001
    shop = Shop(seed=4).run(120, checkpoints=0)
    if is_checkpointed:
        shop.store.checkpoint()
    truth = truth_of(shop.store)
    frame = next(frame for frame in frames_of(shop.store)[20:] if len(frame.rows) == 1)
    store, _, _ = repaired(damaged(shop, frame))
    end_lost(store, shop.now_ms)
    after = truth_of(store)
    hit = {row for one in frames_of(shop.store) if one.rows & frame.rows for row in one.rows}
    places = {place for one in frames_of(shop.store) if one.rows & hit for place in one.places}
    for row, state in truth.states.items():
        assert row in hit or after.states[row] is state
    for place, message in truth.visible.items():
        assert place in places or after.visible[place] == message
    assert after.ends == truth.ends


def test_a_lost_half_message_is_unknown_and_its_number_is_not_given_again() -> None:
    shop = Shop()
    heads = [shop.prepare() for _ in range(3)]
    shop.confirm()
    store, _, _ = repaired(damaged(shop, frame_of(shop, heads[1])))
    assert store.table.get(heads[1]) is None
    with pytest.raises(RequestRefused, match="no_such_half_message"):
        end(store, shop, heads[1], Resolution.COMMIT)
    shop.store = store
    assert shop.prepare() == heads[2] + 1
    assert end(store, shop, heads[2], Resolution.COMMIT).state is State.COMMITTED


def test_a_lost_place_in_a_queue_is_passed_over_and_not_given_again() -> None:
    shop = Shop()
    while len(shop.store.queues) < 4 or min(queue.end for queue in shop.store.queues.values()) < 4:
        shop.append()
    queue = shop.store.queues[0]
    number = next(
        frame for frame in frames_of(shop.store) if (queue.topic, queue.queue_id, 1) in frame.places
    )
    store, _, _ = repaired(damaged(shop, number))
    pulled = StoreReader(store).pull(queue.topic, queue.queue_id, 0, count_max=4, bytes_max=10_000)
    whole = StoreReader(shop.store).pull(
        queue.topic, queue.queue_id, 0, count_max=4, bytes_max=10_000
    )
    assert pulled.messages == [whole.messages[0], *whole.messages[2:]]
    assert (pulled.next_offset, pulled.end) == (whole.next_offset, queue.end)
    alone = StoreReader(store).pull(queue.topic, queue.queue_id, 1, count_max=1, bytes_max=10_000)
    assert (alone.status, alone.messages, alone.next_offset) == (ReadStatus.FOUND, [], 2)


def test_the_time_of_a_lost_place_keeps_the_queue_in_order() -> None:
    shop = Shop(seed=6)
    for _ in range(40):
        shop.now_ms += 100
        shop.append()
    store, _, _ = repaired(damaged(shop, *frames_of(shop.store)[5:30:4]))
    for queue in store.queues.values():
        times = [entry.visible_at_ms for entry in queue.entries(0, queue.end)]
        assert times == sorted(times)


def test_a_decision_that_is_lost_after_a_checkpoint_is_open_again() -> None:
    shop = Shop()
    head = shop.prepare(2)
    shop.end(head, Resolution.COMMIT)
    shop.confirm()
    frame = next(frame for frame in frames_of(shop.store) if head in frame.rows and frame.places)
    store, _, _ = repaired(damaged(shop, frame))
    assert store.core.row(head).state is State.PREPARED
    # Its old places stay empty; the new decision gives new ones.
    assert end(store, shop, head, Resolution.COMMIT).repeated is False
    store.sync()
    assert not set(truth_of(store).visible) & frame.places


def test_a_decision_below_the_checkpoint_stands_without_its_author() -> None:
    shop = Shop()
    head = shop.prepare(2)
    shop.end(head, Resolution.COMMIT)
    shop.store.sync()
    shop.store.checkpoint()
    frame = next(frame for frame in frames_of(shop.store) if frame.places)
    store, _, _ = repaired(damaged(shop, frame))
    settled = end(store, shop, head, Resolution.COMMIT)
    assert (settled.repeated, settled.by) == (True, "unknown, lost with damaged bytes")
    with pytest.raises(RequestRefused, match="already_committed"):
        end(store, shop, head, Resolution.ROLLBACK)
    assert truth_of(store).visible == truth_of(shop.store).visible


def test_a_commit_of_which_some_rows_are_lost_keeps_the_others_in_their_places() -> None:
    for seed in range(6):
        shop = Shop(seed=seed)
        head = shop.prepare(2, requests=3)
        frames = frames_of_rows(shop, head)
        shop.end(head, Resolution.COMMIT)
        shop.confirm()
        truth = truth_of(shop.store)
        for lost in frames:
            after = truth_of(repaired(damaged(shop, lost))[0])
            gone = {place for row in lost.rows - {head} for place in shop.places(row)}
            gone |= shop.places(head) if lost is frames[0] else set()
            kept = {place: truth.visible[place] for place in truth.visible if place not in gone}
            assert after.visible == kept
            assert after.ends == truth.ends


def test_a_commit_of_which_two_requests_apart_are_lost_shows_nothing_in_doubtful_queues() -> None:
    """The record does not map messages to places, and no message is better than a wrong one."""
    for seed in range(6):
        shop = Shop(seed=seed)
        head = shop.prepare(2, requests=3)
        first, second, third = frames_of_rows(shop, head)
        assert len(second.rows) == 3
        shop.end(head, Resolution.COMMIT)
        shop.confirm()
        truth = truth_of(shop.store)
        after = truth_of(repaired(damaged(shop, first, third))[0])
        assert after.ends == truth.ends
        for place, message in after.visible.items():
            assert truth.visible[place] == message


@pytest.mark.parametrize("row", [0, 1])
def test_names_that_were_lost_are_learned_from_the_messages(row: int) -> None:
    shop = Shop(seed=7)
    shop.prepare()
    shop.append()
    shop.prepare()
    for _ in range(20):
        shop.append()
        shop.prepare()
    shop.store.sync()
    store, _, _ = repaired(damaged(shop, frames_of(shop.store)[row]))
    known = {(queue.topic, queue.queue_id) for queue in shop.store.queues.values()}
    assert {(queue.topic, queue.queue_id) for queue in store.queues.values()} <= known | {
        ("lost.0", 0)
    }
    truth = truth_of(shop.store)
    hit = frames_of(shop.store)[row]
    kept = {place: truth.visible[place] for place in truth.visible if place not in hit.places}
    assert truth_of(store).visible == kept


def test_a_queue_of_which_nothing_is_left_has_a_name_that_no_topic_can_have() -> None:
    shop = Shop(seed=1)
    shop.append()
    only = (shop.store.queues[0].topic, shop.store.queues[0].queue_id)
    while len(shop.store.queues) < 2 or shop.store.queues[0].end > 1:
        shop = Shop(seed=shop.seed + 1)
        shop.append()
        shop.append()
        shop.append()
        only = (shop.store.queues[0].topic, shop.store.queues[0].queue_id)
    store, _, _ = repaired(damaged(shop, frames_of(shop.store)[0]))
    assert store.queues[0].topic == "lost.0"
    assert only not in {(queue.topic, queue.queue_id) for queue in store.queues.values()}


def test_a_missing_segment_is_filled_and_takes_no_space() -> None:
    shop = Shop(seed=5).run(100, checkpoints=0)
    disk = FaultyDisk(shop.image())
    segment = shop.store.log.segments[1]
    disk.remove(segment_path(segment.start))
    store, _, done = repaired(disk)
    assert done.copies == []
    assert done.filled == [NumberSpan(first=segment.start, count=segment.size)]
    assert store.log.end == shop.store.log.end
    assert [s.start for s in store.log.segments[:3]] == [
        s.start for s in shop.store.log.segments[:3]
    ]


def test_a_segment_cut_short_is_filled_up() -> None:
    shop = Shop(seed=5).run(100, checkpoints=0)
    disk = FaultyDisk(shop.image())
    segment = shop.store.log.segments[1]
    disk.open(segment_path(segment.start)).truncate(segment.size - 30)
    store, aside, done = repaired(disk)
    assert store.log.end == shop.store.log.end
    (copied,) = done.copies
    assert len(aside.snapshot()[copied.copy]) == done.filled[0].count - 30


def test_a_short_frame_can_be_filled() -> None:
    """The shortest frame that exists: a transaction parked without a reason."""
    shop = Shop()
    head = shop.prepare()
    shop.park(head, reason="")
    shop.resume(head)
    shop.store.sync()
    shop.append()
    shop.append()
    frame = frames_of(shop.store)[1]
    assert frame.end - frame.start == 49
    store, _, done = repaired(damaged(shop, frame))
    assert done.filled == [NumberSpan(first=frame.start, count=49)]
    assert truth_of(store).visible == truth_of(shop.store).visible


def test_a_repaired_store_can_be_repaired_again() -> None:
    shop = Shop(seed=9).run(100)
    frames = frames_of(shop.store)
    disk = damaged(shop, frames[10])
    repaired(disk)
    second = frames[30]
    path = next(p for p in reversed(disk.list("commitlog")) if int(p) <= second.start)
    disk.flip_bit(f"commitlog/{path}", second.start - int(path) + 46, 0)
    repaired(disk)
    assert sorted(span.first for span in check(disk).lost) == [frames[10].start, second.start]


def test_a_torn_tail_is_left_to_the_next_start() -> None:
    shop = Shop()
    for _ in range(3):
        shop.prepare()
        shop.store.sync()
    disk = damaged(shop, frames_of(shop.store)[0])
    file = disk.open(segment_path(0))
    file.write_at(file.size(), b"torn")
    repair(disk, FaultyDisk())
    assert [found.length for found in check(disk).ranges if found.kind is RangeKind.TORN] == [4]
    assert opened(disk)[1].cut_bytes == 4


def test_an_undamaged_store_is_not_touched() -> None:
    disk = FaultyDisk(Shop(seed=2).run(30).image())
    disk.read_only = True
    aside = FaultyDisk()
    assert repair(disk, aside) == Repaired()
    assert aside.snapshot() == {}
