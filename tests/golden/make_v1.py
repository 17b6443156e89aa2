"""Makes ``tests/golden/v1`` and what must be found in it: a store of format version 1.

Run it as ``python -m tests.golden.make_v1``, and only until the format is released: afterwards the
directory never changes, and every later version must open it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import msgspec

from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.ids import pack_host
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.recovery import format as formats
from escrowmq.store.repair.repair import repair
from escrowmq.transaction.commands import CheckSent, End, Park, Resume
from tests.golden.summary import summary
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, Driver, message

HERE = Path(__file__).parent
STORE = HERE / "v1"
EXPECTED = HERE / "v1.json"

MONTH = 30 * 24 * HOUR


def make(root: Path) -> None:
    """Live a few days in a store below ``root``, and leave it as a kill would."""
    root.mkdir(parents=True)
    # Before the store is opened, so that its seed is always the same.
    (root / formats.PATH).write_bytes(msgspec.json.encode(formats.chosen(305_419_896, 8)))
    driver = Driver(OsDisk(root))
    day_that_is_deleted(driver)
    day_of_everything(driver)
    driver = with_something_lost(driver)
    day_of_late_commits(driver)
    last_day(driver)


def day_that_is_deleted(driver: Driver) -> None:
    """Retention deletes its log and carries forward what is needed of it."""
    driver.append(message("deleted", keys="shared"), message("deleted", queue_id=1))
    carried = driver.hold("carried", message("carried", keys="carried-key")).half_offset
    for _ in range(2):
        driver.clock.advance(ms=MINUTE)
        driver.do(CheckSent(half_offset=carried, client="client-1"))
    driver.append(message("much later", deliver_at_ms=driver.clock.now_ms() + MONTH))
    for number in range(6):
        row = driver.hold(f"deleted {number}").half_offset
        (driver.commit if number % 2 else driver.roll_back)(row, by="producer")
    driver.clock.advance(ms=10 * MINUTE)
    # The first chunk stays for its two rows, until one of them is decided.
    driver.roll_segment()
    driver.clock.advance(ms=24 * HOUR)
    driver.retain()
    assert driver.store.log.start > 0
    driver.commit(carried, by="producer, after it was carried")
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [1]


def day_of_everything(driver: Driver) -> None:
    """Messages and transactions of every kind."""
    driver.append(message("plain", keys="order-1 shared", tags="paid", unique_key="unique-1"))
    driver.append(message("a", queue_id=1), message("b"), message("c", queue_id=1, flag=-7))
    driver.append(message("from far", born_host=pack_host("2001:db8::1", 4711), reconsume_times=3))
    driver.append(message("long name", topic="%RETRY%" + "g" * 130))
    held = driver.hold("committed", message("yes", keys="shared"), ledger="l-1", allowed_ms=60_000)
    driver.commit(held.half_offset, by="producer")
    driver.roll_back(driver.hold("rolled back").half_offset, by="producer")
    driver.hold("many", message("part 0a"), message("part 0b", queue_id=1), number=0)
    driver.commit(driver.hold("many", message("part 1"), number=1).half_offset, by="producer")
    asked = driver.hold("asked").half_offset
    driver.clock.advance(ms=MINUTE)
    driver.do(CheckSent(half_offset=asked, client="client-2"))
    unknown = Resolution.UNKNOWN
    driver.do(End(half_offset=asked, resolution=unknown, by="client-2", from_check=True))
    driver.append(message("later", deliver_at_ms=driver.clock.now_ms() + SECOND))
    driver.clock.advance(ms=SECOND)
    driver.release()
    driver.store.checkpoint()


def with_something_lost(driver: Driver) -> Driver:
    """Damage a message, and repair the store."""
    lost_at = driver.store.log.end
    driver.append(message("lost to a flipped bit"))
    driver.append(message("stored after it"))
    segment = next(one for one in driver.store.log.segments if one.start <= lost_at < one.end)
    place = lost_at - segment.start + 60
    file = driver.disk.open(segment_path(segment.start))
    file.write_at(place, bytes([file.read_at(place, 1)[0] ^ 1]))
    with tempfile.TemporaryDirectory() as aside:
        repair(driver.disk, OsDisk(Path(aside)))
    return driver.opened_again()


def day_of_late_commits(driver: Driver) -> None:
    """So late that they are copied."""
    delayed = message("late and delayed", deliver_after_ms=2 * HOUR)
    late = driver.hold("late", message("late"), delayed).half_offset
    driver.clock.advance(ms=2 * HOUR)
    driver.commit(late, by="producer, late")
    driver.clock.advance(ms=2 * HOUR)
    driver.release()


def last_day(driver: Driver) -> None:
    """Open transactions, Spark batches, and a few frames after the last checkpoint."""
    driver.hold("undecided", message("undecided", deliver_after_ms=MINUTE), number=0)
    driver.hold("undecided", message("more of it"), number=1)
    driver.do(Park(half_offset=driver.hold("parked").half_offset, reason="by hand"))
    resumed = driver.hold("resumed").half_offset
    driver.do(Park(half_offset=resumed, reason="exhausted"))
    driver.clock.advance(ms=SECOND)
    driver.do(Resume(half_offset=resumed, by="admin"))
    batches: tuple[tuple[str, int | str], ...] = (("attempt-1", 41), ("attempt-2", "plain-write"))
    for name, batch_id in batches:
        rows = [message(f"{name} row {row}", queue_id=row % 2) for row in range(4)]
        driver.hold(name, *rows, number=0, bulk=True)
        driver.decide_batch(batch_id, (name, 0, 4))
    settled = [driver.hold(f"settled {n}", message(f"settled {n}")) for n in range(4)]
    kinds = ("commit", "rollback", "commit", "rollback")
    driver.obey(*zip((one.half_offset for one in settled), kinds, strict=True), by="pipeline")
    driver.store.checkpoint()
    again = driver.hold("settled at last", message("settled at last", queue_id=1)).half_offset
    driver.obey((again, "commit"), by="pipeline")
    driver.commit(driver.hold("after", message("seen", keys="shared")).half_offset, by="producer")
    driver.append(message("last", keys="shared"))


def main() -> None:
    """Make both again."""
    shutil.rmtree(STORE, ignore_errors=True)
    make(STORE)
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(STORE, copy, dirs_exist_ok=True)
        found = summary(Driver(OsDisk(Path(copy))))
    EXPECTED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
