"""Repair takes damage out of a store: nothing is deleted, and nothing else is lost."""

from __future__ import annotations

import errno
import json

import pytest

from escrowmq.model.errors import RequestRefused, StoreCorrupt, StoreUnusable
from escrowmq.store import checkpoint as checkpoints
from escrowmq.store.commit_log import segment_path
from escrowmq.store.inspect import check
from escrowmq.store.reader import Reader, Status
from escrowmq.store.repair import BY, Repaired, repair, settle_lost
from escrowmq.store.report import Kind, Span
from escrowmq.store.store import Store
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.faulty_disk import Kind as Call
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.commands import End, Settled
from escrowmq.transaction.states import Resolution, State
from tests.unit.store.shop import Frame, Shop, frames_of, opened, truth_of


def damaged(shop: Shop, *frames: Frame) -> FaultyDisk:
    """The shop's disk with a bit flipped in each of these frames."""
    disk = FaultyDisk(shop.image())
    for frame in frames:
        segment = next(s for s in shop.store.log.segments if s.start <= frame.start < s.end)
        disk.flip_bit(segment_path(segment.start), frame.start - segment.start + 46, 0)
    return disk


def repaired(disk: FaultyDisk) -> tuple[Store, FaultyDisk, Repaired]:
    aside = FaultyDisk()
    done = repair(disk, aside)
    assert not check(disk).is_damaged
    return opened(disk)[0], aside, done


def frame_of(shop: Shop, row: int) -> Frame:
    """The frame that holds this half message."""
    return next(frame for frame in frames_of(shop.store) if row in frame.rows)


def end(store: Store, shop: Shop, head: int, resolution: Resolution) -> Settled:
    decision = store.execute(End(half_offset=head, resolution=resolution, by="shop"), shop.now_ms)
    if decision.refused is not None:
        raise decision.refused
    assert isinstance(decision.reply, Settled)
    return decision.reply


# The log.


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
    assert done.filled == [Span(first=frame.start, count=frame.end - frame.start)]


def test_what_is_not_damaged_stays_as_it_is_byte_by_byte() -> None:
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
    settle_lost(store, shop.now_ms)
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
    while len(shop.store.queues) < 4 or min(queue.end for queue in shop.store.queues) < 4:
        shop.append()
    queue = shop.store.queues[0]
    number = next(
        frame for frame in frames_of(shop.store) if (queue.topic, queue.queue_id, 1) in frame.places
    )
    store, _, _ = repaired(damaged(shop, number))
    pulled = Reader(store).pull(queue.topic, queue.queue_id, 0, count_max=4, bytes_max=10_000)
    whole = Reader(shop.store).pull(queue.topic, queue.queue_id, 0, count_max=4, bytes_max=10_000)
    assert pulled.messages == [whole.messages[0], *whole.messages[2:]]
    assert (pulled.next_offset, pulled.end) == (whole.next_offset, queue.end)
    alone = Reader(store).pull(queue.topic, queue.queue_id, 1, count_max=1, bytes_max=10_000)
    assert (alone.status, alone.messages, alone.next_offset) == (Status.FOUND, [], 2)


def test_the_time_of_a_lost_place_keeps_the_queue_in_order() -> None:
    shop = Shop(seed=6)
    for _ in range(40):
        shop.now_ms += 100
        shop.append()
    store, _, _ = repaired(damaged(shop, *frames_of(shop.store)[5:30:4]))
    for queue in store.queues:
        times = [entry.visible_at_ms for entry in queue.entries(0, queue.end)]
        assert times == sorted(times)


def test_a_decision_that_is_lost_after_a_checkpoint_is_open_again() -> None:
    shop = Shop()
    head = shop.prepare(2)
    shop.end(head, Resolution.COMMIT)
    shop.confirm()
    frame = next(frame for frame in frames_of(shop.store) if head in frame.rows and frame.places)
    store, _, _ = repaired(damaged(shop, frame))
    assert store.row(head).state is State.PREPARED
    # Its places stay empty; the new decision gives new ones.
    assert end(store, shop, head, Resolution.COMMIT).repeated is False
    store.sync()
    assert not set(truth_of(store).visible) & frame.places


def test_a_decision_below_the_checkpoint_stands_though_nobody_knows_who_made_it() -> None:
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


def frames_of_rows(shop: Shop, head: int) -> list[Frame]:
    """The frames that hold a transaction's requests."""
    shop.store.sync()
    return [frame for frame in frames_of(shop.store) if head in frame.rows and not frame.places]


def test_a_commit_of_which_two_requests_apart_are_lost_shows_nothing_in_doubtful_queues() -> None:
    """Which place was whose nobody can tell: better none than the wrong one."""
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
    known = {(queue.topic, queue.queue_id) for queue in shop.store.queues}
    assert {(queue.topic, queue.queue_id) for queue in store.queues} <= known | {("lost.0", 0)}
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
    assert only not in {(queue.topic, queue.queue_id) for queue in store.queues}


def test_a_missing_segment_is_filled_and_takes_no_space() -> None:
    shop = Shop(seed=5).run(100, checkpoints=0)
    disk = FaultyDisk(shop.image())
    segment = shop.store.log.segments[1]
    disk.remove(segment_path(segment.start))
    store, _, done = repaired(disk)
    assert done.copies == []
    assert done.filled == [Span(first=segment.start, count=segment.size)]
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
    """The shortest that there are: a transaction parked without a reason."""
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
    assert done.filled == [Span(first=frame.start, count=49)]
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
    assert check(disk).torn_bytes == 4
    assert opened(disk)[1].cut_bytes == 4


def test_an_undamaged_store_is_not_touched() -> None:
    disk = FaultyDisk(Shop(seed=2).run(30).image())
    disk.read_only = True
    aside = FaultyDisk()
    assert repair(disk, aside) == Repaired()
    assert aside.snapshot() == {}


# Transactions that can no longer be delivered whole.


def test_an_undecided_half_whose_bytes_are_lost_is_rolled_back_by_name() -> None:
    shop = Shop()
    heads = [shop.prepare(2), shop.prepare()]
    shop.store.sync()
    shop.store.checkpoint()
    store, _, _ = repaired(damaged(shop, frame_of(shop, heads[0])))
    (ended,) = settle_lost(store, shop.now_ms)
    assert (ended.half_offset, ended.state) == (heads[0], State.PREPARED)
    assert ended.producer_group.startswith("shop-")
    assert ended.topic in ("orders", "invoices")
    for row in (heads[0], heads[0] + 1):
        assert store.row(row).state is State.ROLLED_BACK
    with pytest.raises(RequestRefused) as refused:
        end(store, shop, heads[0], Resolution.COMMIT)
    assert refused.value.code == "already_rolled_back"
    assert refused.value.fields["by"] == BY
    assert store.row(heads[1]).state is State.PREPARED
    assert settle_lost(store, shop.now_ms) == []


@pytest.mark.parametrize("lost", [0, 1])
def test_what_is_left_of_a_transaction_is_rolled_back_when_a_request_before_it_is_lost(
    lost: int,
) -> None:
    shop = Shop()
    head = shop.prepare(2, requests=3)
    other = shop.prepare()
    frames = frames_of_rows(shop, head)
    shop.confirm()
    store, _, _ = repaired(damaged(shop, frames[lost]))
    settle_lost(store, shop.now_ms)
    left = [row for row in range(head, head + 6) if store.table.get(row) is not None]
    assert len(left) == 4
    assert {store.row(row).state for row in left} == {State.ROLLED_BACK}
    assert store.row(other).state is State.PREPARED


def test_a_message_that_waits_for_its_time_and_is_lost_gets_an_empty_place() -> None:
    shop = Shop()
    shop.append(at_ms=shop.now_ms + 10_000)
    shop.store.checkpoint()
    row = 0
    store, _, _ = repaired(damaged(shop, frame_of(shop, row)))
    (ended,) = settle_lost(store, shop.now_ms)
    assert (ended.state, ended.producer_group) == (State.COMMITTED, "")
    assert store.table.needed == 0
    assert sum(queue.end for queue in store.queues) == 1
    assert truth_of(store).visible == {}


def test_retention_goes_on_after_a_repair() -> None:
    shop = Shop(seed=11).run(150, checkpoints=0.05)
    shop.store.checkpoint()
    undecided = next(iter(shop.open))
    disk = damaged(shop, frame_of(shop, undecided))
    store, _, _ = repaired(disk)
    settle_lost(store, shop.now_ms)
    shop.store, shop.disk = store, disk
    shop.open = [
        head
        for head in shop.open
        if (half := store.table.get(head)) is not None
        and half.state in (State.PREPARED, State.PARKED)
    ]
    shop.run(300, checkpoints=0.02, retention=0.05)
    assert store.log.start > frame_start(disk)
    before = truth_of(store)
    after = truth_of(opened(FaultyDisk(shop.image()))[0])
    assert after == before
    assert not check(FaultyDisk(shop.image())).is_damaged


def frame_start(disk: FaultyDisk) -> int:
    checkpoint = checkpoints.load(disk, checkpoints.PATH)
    assert checkpoint is not None
    return checkpoint.lost[0][0]


# Projections and checkpoints.


def test_damaged_projections_are_moved_aside_and_made_again() -> None:
    shop = Shop(seed=12).run(120, checkpoints=0.1)
    shop.store.checkpoint()
    truth = truth_of(shop.store)
    image = shop.image()
    checkpoint = checkpoints.load(FaultyDisk(image), checkpoints.PATH)
    assert checkpoint is not None
    paths = [
        *(f"statetable/{name}" for name in checkpoint.state_files()),
        *(f"keyindex/{name}" for name in checkpoint.key_runs),
        *(path for path in image.files if path.startswith("consumequeue/")),
    ]
    assert len(paths) > 6
    for path in paths:
        disk = FaultyDisk(image)
        disk.flip_bit(path, len(image.files[path]) - 5, 1)
        content = disk.snapshot()[path]
        aside = FaultyDisk()
        done = repair(disk, aside)
        assert done.is_rebuilt
        assert [(one.path, one.copy) for one in done.copies] == [(path, path)]
        assert aside.durable_snapshot()[path] == content
        store, found = opened(disk)
        assert found.rebuilt_because.startswith(path)
        assert truth_of(store) == truth
        assert not check(disk).is_damaged
        assert opened(disk)[1].rebuilt_because == ""


def test_a_projection_that_is_gone_is_made_again() -> None:
    shop = Shop(seed=12).run(60)
    shop.store.checkpoint()
    disk = FaultyDisk(shop.image())
    path = next(path for path in disk.snapshot() if path.startswith("consumequeue/"))
    disk.remove(path)
    store, _, done = repaired(disk)
    assert (done.copies, done.is_rebuilt) == ([], True)
    assert truth_of(store) == truth_of(shop.store)


@pytest.mark.parametrize("path", ["checkpoint", "checkpoint.old"])
def test_a_damaged_checkpoint_is_moved_aside(path: str) -> None:
    shop = Shop(seed=13).run(100, checkpoints=0.05)
    disk = FaultyDisk(shop.image())
    disk.flip_bit(path, 70, 1)
    content = disk.snapshot()[path]
    store, aside, done = repaired(disk)
    assert [one.path for one in done.copies] == [path]
    assert aside.durable_snapshot()[path] == content
    assert truth_of(store) == truth_of(shop.store)


def test_with_both_checkpoints_damaged_the_whole_log_is_replayed() -> None:
    shop = Shop(seed=13).run(100, checkpoints=0.05)
    disk = damaged(shop, frames_of(shop.store)[3])
    disk.flip_bit("checkpoint", 70, 1)
    disk.flip_bit("checkpoint.old", 70, 1)
    store, _, done = repaired(disk)
    assert len(done.copies) == 3
    assert not done.is_rebuilt
    assert store.log.end == shop.store.log.end


# What cannot be repaired.


def test_a_foreign_file_must_be_moved_by_a_person() -> None:
    disk = FaultyDisk(Shop().image())
    disk.open("notes.txt", create=True)
    with pytest.raises(StoreUnusable, match="store_foreign"):
        repair(disk, FaultyDisk())


def test_a_newer_log_is_not_repaired() -> None:
    shop = Shop()
    shop.append()
    end_offset = shop.store.log.end
    shop.append()
    disk = FaultyDisk(shop.image())
    file = disk.open(segment_path(0))
    file.write_at(end_offset + 4, b"\x02")
    with pytest.raises(StoreUnusable, match="frame_version_unknown"):
        repair(disk, FaultyDisk())


def test_a_log_without_its_beginning_and_without_a_checkpoint_is_not_repaired() -> None:
    shop = Shop(seed=8).run(300, retention=0.05)
    disk = FaultyDisk(shop.image())
    disk.flip_bit("checkpoint", 70, 1)
    disk.flip_bit("checkpoint.old", 70, 1)
    with pytest.raises(StoreCorrupt, match="checkpoint_missing"):
        repair(disk, FaultyDisk())
    assert check(disk).damage == []


def test_nothing_is_changed_if_the_copy_cannot_be_made() -> None:
    shop = Shop(seed=2).run(60)
    disk = damaged(shop, frames_of(shop.store)[10])
    before = disk.snapshot()
    aside = FaultyDisk()
    aside.capacity_bytes = 10
    with pytest.raises(OSError, match="No space left"):
        repair(disk, aside)
    assert disk.snapshot() == before


def test_a_repair_that_was_interrupted_anywhere_can_be_done_again() -> None:
    shop = Shop(seed=14).run(120, checkpoints=0.03)
    shop.store.checkpoint()
    shop.append()
    frames = frames_of(shop.store)
    image = damaged(shop, frames[10], frames[-3]).crash_image(everything_survives)
    path = next(path for path in image.files if path.startswith("statetable/"))
    expected = None
    calls = 0
    while expected is None or calls < 200:
        disk = FaultyDisk(image)
        disk.flip_bit(path, 30, 1)
        for call in (Call.WRITE, Call.FLUSH, Call.RENAME, Call.REMOVE, Call.FLUSH_DIRECTORY):
            disk.fail_after(call, calls, errno.EIO)
        try:
            repair(disk, FaultyDisk())
        except OSError:
            disk = disk.crash(everything_survives)
            repair(disk, FaultyDisk())
        else:
            disk, calls = disk.crash(everything_survives), 200
        store, _ = opened(disk)
        settle_lost(store, shop.now_ms)
        truth = truth_of(store)
        expected = expected or truth
        assert truth == expected
        assert not check(disk).is_damaged
        calls += 1


# For all.


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_damaged_the_rest_is_intact(seed: int) -> None:
    shop = Shop(seed=seed)
    rng = shop.rng
    shop.run(rng.choice((60, 160)), checkpoints=0.02, retention=rng.choice((0.0, 0.03)))
    image = shop.image()
    whole, _ = opened(FaultyDisk(image))
    truth, frames = truth_of(whole), frames_of(whole)
    disk = FaultyDisk(image)
    for _ in range(rng.choice((1, 3))):
        path = rng.choice([path for path in image.files if path.startswith("commitlog/")])
        size = len(image.files[path])
        match rng.randrange(4):
            case 0 if size and disk.exists(path):
                disk.open(path).truncate(rng.randrange(size))
            case 1:
                disk.remove(path)
            case _ if disk.exists(path) and disk.open(path).size():
                disk.flip_bit(path, rng.randrange(disk.open(path).size()), rng.randrange(8))
    report = check(disk)
    aside = FaultyDisk()
    repair(disk, aside)
    store, _ = opened(disk)
    settle_lost(store, shop.now_ms)
    gone = [(found.log_offset, found.end) for found in report.ranges]
    gone.append((report.log_end, whole.log.end))
    rows, places = touched(frames, gone)
    after = truth_of(store)
    for row, state in truth.states.items():
        assert row in rows or after.states.get(row) is state
    for place, message in truth.visible.items():
        assert place in places or after.visible.get(place) == message
    for place, message in after.visible.items():
        assert truth.visible.get(place, message) == message
    assert not check(disk).is_damaged
    assert {found.kind for found in report.ranges} <= set(Kind)


def touched(
    frames: list[Frame], gone: list[tuple[int, int]]
) -> tuple[set[int], set[tuple[str, int, int]]]:
    """Rows and places of every transaction that has something in a range that is gone."""
    hit = [frame for frame in frames if any(a < frame.end and frame.start < b for a, b in gone)]
    rows = {row for frame in hit for row in frame.rows}
    places = {place for frame in hit for place in frame.places}
    while more := [frame for frame in frames if frame.rows & rows and not frame.rows <= rows]:
        rows.update(row for frame in more for row in frame.rows)
    places.update(place for frame in frames if frame.rows & rows for place in frame.places)
    return rows, places
