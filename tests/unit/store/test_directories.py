"""Queue files have unique names on any file system; names from earlier releases still work."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair import backup
from escrowmq.store.repair.inspect import check
from escrowmq.testing.faulty_disk import FaultyDisk
from tests.unit.store.helpers import HOUR, Driver, message

NAMES = ("Orders", "orders", "ORDERS")
FILE = f"{0:020d}"


class FoldingDisk(OsDisk):
    """A file system that treats ``Orders`` and ``orders`` as one name, as on a Mac."""

    def _absolute(self, path: str) -> str:
        return super()._absolute(path.lower())


def filled(disk: OsDisk) -> Driver:
    driver = Driver(disk)
    for number in range(30):
        name = NAMES[number % 3]
        driver.append(message(f"{name} {number}", topic=name))
        if number % 10 == 9:
            driver.store.checkpoint()
    return driver


def assert_apart(driver: Driver) -> None:
    for at, name in enumerate(NAMES):
        assert driver.bodies(name) == [f"{name} {number}" for number in range(at, 30, 3)]


def test_topics_whose_names_differ_in_case_alone_stay_apart(tmp_path: Path) -> None:
    after = filled(FoldingDisk(tmp_path)).closed_and_opened()
    assert after.found.rebuilt_because == ""
    assert_apart(after)


def with_names_of_before(driver: Driver, root: Path) -> None:
    """Lay out the queues as earlier releases did: by topic and queue."""
    driver.store.close()
    for queue in driver.store.queues.values():
        old = root / "consumequeue" / queue.topic / str(queue.queue_id)
        old.mkdir(parents=True)
        (root / f"{queue.prefix}{FILE}").rename(old / FILE)


def test_directories_of_earlier_releases_are_used_as_they_are(tmp_path: Path) -> None:
    driver = filled(OsDisk(tmp_path))
    with_names_of_before(driver, tmp_path)
    assert not check(OsDisk(tmp_path)).findings
    after = driver.opened_again()
    assert after.found.rebuilt_because == ""
    assert_apart(after)
    after.append(message("more", topic="orders"))
    after.append(message("other", topic="other"))
    again = after.closed_and_opened()
    assert again.found.rebuilt_because == ""
    assert again.bodies("orders")[-1] == "more"
    assert again.store.queues[1].prefix == "consumequeue/orders/0/"
    assert again.store.queues[3].prefix == "consumequeue/00000003."
    assert not check(OsDisk(tmp_path)).findings


def test_a_topic_named_like_a_number_is_no_obstacle(tmp_path: Path) -> None:
    driver = Driver(OsDisk(tmp_path))
    for topic in ("orders", "00000002"):
        driver.append(message(topic, topic=topic))
    with_names_of_before(driver, tmp_path)
    after = driver.opened_again()
    after.append(message("new", topic="new"))
    again = after.closed_and_opened()
    assert again.store.queues[2].prefix == "consumequeue/00000002."
    assert [again.bodies(topic) for topic in ("orders", "00000002", "new")] == [
        ["orders"],
        ["00000002"],
        ["new"],
    ]
    again.roll_segment()
    again.clock.advance(ms=25 * HOUR)
    again.append(message("later", topic="filler"))
    again.roll_segment()
    again.retain()
    assert again.bodies("new") == []


def test_mixed_directories_of_a_file_system_without_case_are_made_anew(tmp_path: Path) -> None:
    driver = filled(FoldingDisk(tmp_path))
    driver.store.close()
    # All three queues wrote into one directory, and the last one is unknown.
    mixed = tmp_path / "consumequeue/orders/0"
    mixed.mkdir(parents=True)
    for queue in driver.store.queues.values():
        (tmp_path / f"{queue.prefix}{FILE}").replace(mixed / FILE)
    after = Driver(FoldingDisk(tmp_path), clock=driver.clock)
    assert "missing" in after.found.rebuilt_because
    assert_apart(after)
    assert_apart(after.closed_and_opened())


OF_FILE_SYSTEMS = (
    "lost+found",
    ".nfs000000000123abcd00000001",
    ".fuse_hidden0000abcd00000001",
    ".DS_Store",
    "._format",
    ".snapshot",
    ".zfs",
    ".Trash-1000",
)


@pytest.mark.parametrize("name", OF_FILE_SYSTEMS)
@pytest.mark.parametrize("disk_kind", [OsDisk, FaultyDisk])
def test_files_that_a_file_system_creates_are_passed_over(
    tmp_path: Path, name: str, disk_kind: type
) -> None:
    disk = disk_kind(tmp_path / "store") if disk_kind is OsDisk else disk_kind()
    disk.make_directory("")
    plant(disk, name)
    driver = Driver(disk)
    driver.append(message("kept"))
    driver.roll_back(driver.hold("t").half_offset)
    driver.store.checkpoint()
    for directory in ("commitlog/", "consumequeue/", "statetable/", "keyindex/"):
        plant(disk, f"{directory}{name}")
    assert not check(disk).findings
    after = driver.closed_and_opened()
    assert after.bodies() == ["kept"]
    after.roll_segment()
    after.clock.advance(ms=25 * HOUR)
    after.append(message("later"))
    after.roll_segment()
    assert after.retain().segments
    assert after.closed_and_opened().bodies() == ["later"]


def plant(disk: OsDisk | FaultyDisk, path: str) -> None:
    disk.open(path, create=True).close()


def test_anything_else_is_still_refused(tmp_path: Path) -> None:
    Driver(OsDisk(tmp_path)).store.close()
    for name in ("notes.txt", "lost+found.old", ".hidden", "statetable/.hidden"):
        (tmp_path / name).touch()
        with pytest.raises(StoreUnusable, match="store_foreign"):
            Driver(OsDisk(tmp_path))
        (tmp_path / name).unlink()


def test_a_volume_of_its_own_takes_a_backup(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    backup.refuse_unless_empty(OsDisk(tmp_path))
