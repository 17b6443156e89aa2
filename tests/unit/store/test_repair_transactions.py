"""After a repair no transaction is partly delivered, and all others are unchanged."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.repair.inspect import check
from escrowmq.store.repair.repair import BY, end_lost, repair
from escrowmq.store.repair.report import RangeKind
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.states import State
from tests.unit.store.damage import damaged, end, frame_of, frames_of_rows, repaired
from tests.unit.store.shop import Frame, Shop, frames_of, opened, truth_of


def test_an_undecided_half_whose_bytes_are_lost_is_rolled_back_by_name() -> None:
    shop = Shop()
    heads = [shop.prepare(2), shop.prepare()]
    shop.store.sync()
    shop.store.checkpoint()
    store, _, _ = repaired(damaged(shop, frame_of(shop, heads[0])))
    (ended,) = end_lost(store, shop.now_ms, batch_max=1)
    assert (ended.half_offset, ended.state) == (heads[0], State.PREPARED)
    assert ended.producer_group.startswith("shop-")
    assert ended.topic in ("orders", "invoices")
    for row in (heads[0], heads[0] + 1):
        assert store.core.row(row).state is State.ROLLED_BACK
    with pytest.raises(RequestRefused) as refused:
        end(store, shop, heads[0], Resolution.COMMIT)
    assert refused.value.code == "already_rolled_back"
    assert refused.value.fields["by"] == BY
    assert store.core.row(heads[1]).state is State.PREPARED
    assert end_lost(store, shop.now_ms) == []


@pytest.mark.parametrize("lost", [0, 1])
def test_the_rest_of_a_transaction_is_rolled_back_if_an_earlier_request_is_lost(
    lost: int,
) -> None:
    shop = Shop()
    head = shop.prepare(2, requests=3)
    other = shop.prepare()
    frames = frames_of_rows(shop, head)
    shop.confirm()
    store, _, _ = repaired(damaged(shop, frames[lost]))
    end_lost(store, shop.now_ms)
    left = [row for row in range(head, head + 6) if store.table.get(row) is not None]
    assert len(left) == 4
    assert {store.core.row(row).state for row in left} == {State.ROLLED_BACK}
    assert store.core.row(other).state is State.PREPARED


def test_a_message_that_waits_for_its_time_and_is_lost_gets_an_empty_place() -> None:
    shop = Shop()
    shop.append(at_ms=shop.now_ms + 10_000)
    shop.store.checkpoint()
    row = 0
    store, _, _ = repaired(damaged(shop, frame_of(shop, row)))
    (ended,) = end_lost(store, shop.now_ms)
    assert (ended.state, ended.producer_group) == (State.COMMITTED, "")
    assert store.table.needed == 0
    assert sum(queue.end for queue in store.queues.values()) == 1
    assert truth_of(store).visible == {}


def test_retention_goes_on_after_a_repair() -> None:
    shop = Shop(seed=11).run(150, checkpoints=0.05)
    shop.store.checkpoint()
    undecided = next(iter(shop.open))
    disk = damaged(shop, frame_of(shop, undecided))
    store, _, _ = repaired(disk)
    end_lost(store, shop.now_ms)
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


# For all kinds of damage.


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
    end_lost(store, shop.now_ms)
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
    assert {found.kind for found in report.ranges} <= set(RangeKind)


def touched(
    frames: list[Frame], gone: list[tuple[int, int]]
) -> tuple[set[int], set[tuple[str, int, int]]]:
    """Rows and places of every transaction that has anything in a lost range."""
    hit = [frame for frame in frames if any(a < frame.end and frame.start < b for a, b in gone)]
    rows = {row for frame in hit for row in frame.rows}
    places = {place for frame in hit for place in frame.places}
    while more := [frame for frame in frames if frame.rows & rows and not frame.rows <= rows]:
        rows.update(row for frame in more for row in frame.rows)
    places.update(place for frame in frames if frame.rows & rows for place in frame.places)
    return rows, places
