"""A restart gives the same state: from a checkpoint, from the log alone, and after spills."""

from __future__ import annotations

import struct
from random import Random
from zlib import crc32

import pytest

from escrowmq.model.errors import StoreUnusable
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.log.frames import HEAD_BYTES, MAGIC, VERSION, open_frame
from escrowmq.store.log.lone_frames import DECISION_BYTES, MARK
from escrowmq.store.recovery import replay
from escrowmq.store.retention.needed import needed_rows
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import CheckSent, End, Park, Prepare, Resume
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, Driver, faulty, message


class Walk:
    """A random day of a store, drawn from the seed."""

    def __init__(self, seed: int, checkpoint_bytes: int) -> None:
        self.rng = Random(seed)
        self.driver = Driver(
            retention_ms=6 * HOUR, copy_after_ms=HOUR, checkpoint_bytes=checkpoint_bytes
        )
        self.numbers: dict[str, int] = {}
        self.count = 0

    def some_messages(self, count_max: int, *, delays: bool = False) -> list[SentMessage]:
        rng = self.rng
        return [
            message(
                f"m{self.count}-{number}",
                topic=rng.choice(("orders", "orders", "other")),
                queue_id=rng.randrange(2),
                keys=rng.choice(("", "k1", "k1 k2")),
                deliver_after_ms=rng.choice((0, 0, 5 * SECOND)) if delays else 0,
            )
            for number in range(rng.randint(1, count_max))
        ]

    def undecided(self) -> list[int]:
        needed = needed_rows(self.driver.store.table)
        return [row for row in needed if self.driver.half(row).state is not State.COMMITTED]

    def step(self) -> None:
        rng, driver = self.rng, self.driver
        self.count += 1
        name = f"t{self.count}"
        undecided = self.undecided()
        kind = rng.random()
        if kind < 0.35:
            driver.hold(name)
        elif kind < 0.45:
            driver.hold(name, *self.some_messages(12, delays=True), number=0)
            self.numbers[name] = 1
        elif kind < 0.50 and self.numbers:
            self.join(rng.choice(list(self.numbers)))
        elif kind < 0.58:
            driver.append(*self.some_messages(5))
        elif kind < 0.61:
            at_ms = driver.clock.now_ms() + rng.randint(1, 10) * SECOND
            driver.append(*(message(f"s{self.count}", deliver_at_ms=at_ms) for _ in range(2)))
        elif kind < 0.90 and undecided:
            self.settle(undecided)
        elif kind < 0.94 and undecided:
            self.look_after(rng.choice(undecided))
        elif kind < 0.96:
            driver.hold(name, *self.some_messages(9), number=0, bulk=True)
            rows = driver.store.table.end - (driver.store.table.find(name) or 0)
            driver.decide_batch(rng.choice((self.count, name)), (name, 0, rows))
        driver.clock.advance(ms=rng.choice((1, SECOND, SECOND, MINUTE)))
        if rng.random() < 0.02:
            driver.clock.advance(ms=2 * HOUR)
        driver.release()

    def join(self, name: str) -> None:
        command = message(f"{name} again")
        half = self.driver.reader.find_transaction(name)
        if half is not None and half.state is State.PREPARED:
            self.driver.hold(name, command, number=self.numbers[name])
            self.numbers[name] += 1

    def end(self, row: int) -> None:
        resolution = self.rng.choice((Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK))
        self.driver.do(End(half_offset=row, resolution=resolution, by=f"by {self.count}"))

    def settle(self, undecided: list[int]) -> None:
        """Decide mostly the newest ones, so that others grow old."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            self.obey(undecided)
        elif kind < 0.2:
            self.end(rng.choice(undecided))
        else:
            self.end(undecided[-1 - min(rng.randrange(6), len(undecided) - 1)])

    def obey(self, undecided: list[int]) -> None:
        """Send verdicts on the last few together, or on any one."""
        rng = self.rng
        rows = undecided[-5:] if rng.random() < 0.5 else rng.sample(undecided, 1)
        kinds = [rng.choice(("commit", "rollback")) for _ in rows]
        self.driver.obey(*zip(rows, kinds, strict=True), by=f"by {self.count}")

    def look_after(self, row: int) -> None:
        parked = self.driver.half(row).state is State.PARKED
        if parked:
            self.driver.do(Resume(half_offset=row, by="admin"))
        elif self.rng.random() < 0.5:
            self.driver.do(Park(half_offset=row, reason="by hand"))
        else:
            self.driver.decide(CheckSent(half_offset=row, client="c"))


def without_projections(driver: Driver) -> Driver:
    """A copy that must rebuild everything from the log."""
    disk = faulty(driver).crash(everything_survives)
    for name in disk.list("keyindex"):
        disk.flip_bit(f"keyindex/{name}", 0, 0)
    return Driver(disk, clock=driver.clock, policy=driver.policy, **driver.changes)


def without_checkpoints(driver: Driver) -> Driver:
    disk = faulty(driver).crash(everything_survives)
    for name in ("checkpoint", "checkpoint.old"):
        disk.remove(name)
    return Driver(disk, clock=driver.clock, policy=driver.policy, **driver.changes)


def found_by_key(driver: Driver) -> list[list[bytes]]:
    return [driver.reader.find("orders", key, limit=1_000) for key in ("k1", "k2")]


@pytest.mark.parametrize("checkpoint_bytes", [4096, 2**30])
@pytest.mark.parametrize("seed", range(3))
def test_a_restart_brings_back_what_was(seed: int, checkpoint_bytes: int) -> None:
    walk = Walk(seed, checkpoint_bytes)
    driver = walk.driver
    for number in range(150):
        walk.step()
        if number % 40 == 20 and seed % 2:
            driver.store.checkpoint()
    before, keys = driver.picture(), found_by_key(driver)
    for after in (
        driver.crashed(nothing_survives),
        driver.crashed(nothing_survives).crashed(nothing_survives),
        without_projections(driver),
        without_checkpoints(driver),
        driver.crashed(chunk_rows=64, segment_bytes_max=2**20),
    ):
        assert after.picture() == before
        assert found_by_key(after) == keys
    driver = walk.driver = driver.closed_and_opened()
    assert driver.picture() == before
    for _ in range(50):
        walk.step()


@pytest.mark.parametrize("checkpoint_bytes", [4096, 2**30])
@pytest.mark.parametrize("seed", range(3))
def test_a_rebuilt_store_goes_on_like_one_that_never_was(seed: int, checkpoint_bytes: int) -> None:
    """After retention, a rebuilt table may know fewer decided rows, but everything else."""
    walk = Walk(seed, checkpoint_bytes)
    for number in range(200):
        walk.step()
        if number % 50 == 25:
            walk.driver.clock.advance(ms=3 * HOUR)
            walk.driver.retain()
    driver = walk.driver
    rebuilt = without_projections(driver)
    assert rebuilt.found.rebuilt_because
    for after in (driver.crashed(), rebuilt, without_projections(rebuilt)):
        now, then = after.picture(), driver.picture()
        rows = now.pop("rows")
        known = {row: fact for row, fact in then.pop("rows").items() if row in rows}
        assert now == then
        assert {row: fact[0] for row, fact in rows.items()} == {
            row: fact[0] for row, fact in known.items()
        }
        for row in walk.undecided():
            if after.half(row).state is not State.COMMITTED:
                after.commit(row)
        assert after.store.table.needed == len(after.store.table.due(2**62, 10**6))


def test_many_transactions_of_one_message_are_replayed_in_runs() -> None:
    driver = Driver(chunk_rows=512, segment_bytes_max=2**20)
    rng = Random(3)
    for number in range(replay.GATHERED_MAX + 10):
        command = prepare(number, rng.randrange(3))
        driver.store.execute(command, driver.clock.now_ms() + number)
        if number % 3:
            resolution = Resolution.COMMIT if number % 2 else Resolution.ROLLBACK
            end = End(half_offset=number - rng.randrange(2), resolution=resolution, by="p")
            driver.store.execute(end, driver.clock.now_ms() + number)
    driver.store.sync()
    assert driver.crashed().picture() == driver.picture()


def prepare(number: int, queue_id: int) -> Prepare:
    body = message(f"m{number}", queue_id=queue_id, keys=f"k{number % 5}")
    return Prepare(group="g", transaction_id=f"t{number}", messages=(body,))


def test_a_row_that_outlives_its_chunk_during_a_replay_is_decided_where_it_is() -> None:
    driver = Driver(chunk_rows=64, segment_bytes_max=2**20)
    driver.hold("outlives")
    for row in range(1, 64):
        driver.hold(f"t{row}")
        driver.roll_back(row)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message(bytes(20_000), topic="filler"))
    driver.commit(0, by="late")
    after = driver.crashed(checkpoint_bytes=4096)
    assert list(after.store.table.survivors.rows) == [0]
    assert after.picture() == driver.picture()


def test_a_row_that_was_carried_before_the_checkpoint_is_shown_where_it_is_now() -> None:
    driver = Driver()
    driver.hold("carried")
    driver.hold("other")
    driver.commit(1)
    below = driver.roll_segment()
    driver.clock.advance(ms=24 * HOUR)
    assert driver.retain().carried == 1
    driver.commit(0)
    after = driver.crashed()
    assert after.found.frames == 1
    assert after.half(0).location > below
    assert after.bodies() == ["carried"]
    assert after.picture() == driver.picture()


# A deleted log of which only decisions are left


def decided_after_its_log(*messages: SentMessage, more: int) -> tuple[Driver, Driver]:
    """A transaction whose half messages are deleted but not its commit; and a rebuilt copy."""
    driver = Driver(retention_bytes=5_000)
    driver.append(message("takes number 0", topic="first"))
    driver.hold("t", *messages)
    below = driver.roll_segment()
    driver.commit(0)
    for number in range(more):
        held = driver.hold(f"more {number}")
        driver.commit(held.half_offset)
    driver.append(message("last"))
    assert driver.retain().log_start == below
    return driver, without_projections(driver)


@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize(
    "messages",
    [
        [message("deleted")],
        [message("deleted"), message("deleted too"), message("elsewhere", queue_id=1)],
    ],
    ids=len,
)
def test_a_decision_on_deleted_rows_leaves_the_others_in_their_places(
    messages: list[SentMessage], more: int
) -> None:
    driver, rebuilt = decided_after_its_log(*messages, more=more)
    expected = [*(f"more {number}" for number in range(more)), "last"]
    assert driver.bodies() == rebuilt.bodies() == expected
    assert rebuilt.picture()["queues"] == driver.picture()["queues"]
    assert rebuilt.store.table.end == driver.store.table.end
    assert rebuilt.crashed().picture() == rebuilt.picture()
    assert rebuilt.append(message("next")).queue_offsets == driver.append().queue_offsets


def test_a_half_message_whose_bytes_are_torn_is_cut_though_its_record_is_whole() -> None:
    driver = Driver()
    for name in ("names its group", "whole"):
        driver.hold(name)
    torn_at = driver.store.log.end
    torn = Prepare(group="pay", transaction_id="torn", messages=(message("torn"),))
    driver.store.execute(torn, driver.clock.now_ms())
    driver.store.write()
    faulty(driver).flip_bit(segment_path(0), torn_at + HEAD_BYTES + 95, 0)
    after = driver.opened_again()
    assert after.store.table.end == 2
    assert after.found.cut_bytes > 0


def test_a_lone_record_of_a_kind_to_come_is_refused() -> None:
    driver = Driver()
    driver.hold("known")
    start = driver.store.log.end
    frame = open_frame(())
    frame += bytes((MARK, 3)) + bytes(DECISION_BYTES)
    place = (start, driver.clock.now_ms(), start)
    head = struct.pack("<4sHHIIQQQ", MAGIC, VERSION, 0, len(frame), HEAD_BYTES, *place)
    checksum = crc32(frame[HEAD_BYTES:], crc32(head, driver.store.seed))
    frame[:HEAD_BYTES] = head + struct.pack("<I", checksum)
    driver.store.log.append(frame, driver.clock.now_ms())
    driver.store.sync()
    with pytest.raises(StoreUnusable, match="kind 3"):
        driver.opened_again()
