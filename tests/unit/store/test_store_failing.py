"""A store whose write, flush or checkpoint failed does nothing more; a restart recovers."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import Append, End
from tests.unit.store.helpers import T0, Driver, faulty, message


def failed(kind: DiskCall, code: int, *, under: str = "commitlog", short_bytes: int = 0) -> Driver:
    """A store that failed while it stored "lost", after "kept" was acknowledged."""
    driver = Driver()
    driver.append(message("kept"))
    driver.hold("undecided")
    faulty(driver).fail_after(kind, 0, code, under=under, short_bytes=short_bytes)
    driver.store.execute(Append(messages=(message("lost"),)), T0)
    with pytest.raises(OSError, match=r"No space|Input/output"):
        driver.store.sync()
    return driver


FAULTS = pytest.mark.parametrize(
    ("kind", "code", "short_bytes"),
    [
        (DiskCall.WRITE, errno.ENOSPC, 0),
        (DiskCall.WRITE, errno.ENOSPC, 50),  # within the head
        (DiskCall.WRITE, errno.EIO, 100),  # within the message
        (DiskCall.FLUSH, errno.EIO, 0),
        (DiskCall.FLUSH, errno.ENOSPC, 0),  # some systems report a full disk only now
    ],
)

REFUSED: dict[str, Callable[[Driver], object]] = {
    "execute": lambda driver: driver.store.execute(Append(messages=(message(),)), T0),
    "decide": lambda driver: driver.commit(0),
    "write": lambda driver: driver.store.write(),
    "flush": lambda driver: driver.store.flush(),
    "publish": lambda driver: driver.store.publish(),
    "sync": lambda driver: driver.store.sync(),
    "checkpoint": lambda driver: driver.store.checkpoint(),
    "begin_checkpoint": lambda driver: driver.store.begin_checkpoint(),
}


@FAULTS
@pytest.mark.parametrize("name", REFUSED)
def test_after_a_failure_everything_is_refused(
    kind: DiskCall, code: int, short_bytes: int, name: str
) -> None:
    driver = failed(kind, code, short_bytes=short_bytes)
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            REFUSED[name](driver)
        assert refused.value.code == "store_failed"
    assert driver.bodies() == ["kept"]


@FAULTS
def test_a_restart_has_what_was_acknowledged_and_goes_on(
    kind: DiskCall, code: int, short_bytes: int
) -> None:
    driver = failed(kind, code, short_bytes=short_bytes)
    for after in (
        driver.crashed(nothing_survives),
        driver.crashed(everything_survives),
        driver.opened_again(),
    ):
        assert after.bodies()[0] == "kept"
        assert set(after.bodies()[1:]) <= {"lost"}
        after.commit(0)
        after.append(message("more"))
        bodies = after.bodies()
        assert bodies[-2:] == ["undecided", "more"]
        assert after.closed_and_opened().bodies() == bodies


def test_a_disk_that_stays_full_keeps_the_store_closed_until_there_is_room() -> None:
    driver = Driver()
    driver.append(message("kept"))
    disk = faulty(driver)
    disk.capacity_bytes = sum(map(len, disk.snapshot().values())) + 100
    driver.store.execute(Append(messages=(message(bytes(500)),)), T0)
    with pytest.raises(OSError, match="No space"):
        driver.store.sync()
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        driver.opened_again()
    disk.capacity_bytes = None
    assert driver.opened_again().bodies() == ["kept"]


def test_closing_a_failed_store_writes_nothing_and_gives_all_files_back() -> None:
    driver = failed(DiskCall.FLUSH, errno.EIO)
    before = faulty(driver).snapshot()
    files = [segment.file for segment in driver.store.log.segments]
    driver.store.close()
    assert faulty(driver).snapshot() == before
    for file in files:
        with pytest.raises(OSError, match="Bad file"):
            file.size()


@pytest.mark.parametrize(
    ("kind", "under"),
    [
        (DiskCall.FLUSH, "statetable"),
        (DiskCall.WRITE, "consumequeue"),
        (DiskCall.CREATE, "keyindex"),
        (DiskCall.RENAME, "checkpoint"),
        (DiskCall.FLUSH_DIRECTORY, ""),
    ],
)
def test_a_checkpoint_that_fails_stops_the_store_and_loses_nothing(
    kind: DiskCall, under: str
) -> None:
    driver = Driver()
    driver.append(message("kept", keys="k"))
    driver.hold("t")
    before = driver.picture()
    faulty(driver).fail_after(kind, 0, errno.EIO, under=under)
    with pytest.raises(OSError, match="Input/output"):
        driver.store.checkpoint()
    with pytest.raises(Unavailable):
        driver.append(message("refused"))
    for survivors in (nothing_survives, everything_survives):
        assert driver.crashed(survivors).picture() == before
    assert driver.opened_again().picture() == before


def test_a_read_that_fails_during_a_decision_changes_nothing() -> None:
    """A late commit reads the half message to copy it."""
    driver = Driver(copy_after_ms=0)
    driver.hold("t")
    before = driver.picture()
    faulty(driver).fail_after(DiskCall.READ, 0, errno.EIO, under="commitlog")
    end = End(half_offset=0, resolution=Resolution.COMMIT, by="p")
    with pytest.raises(OSError, match="Input/output"):
        driver.store.execute(end, T0)
    driver.store.sync()
    assert driver.picture() == before
    assert driver.commit(0).repeated is False


# Stores that cannot be opened


def test_a_read_only_disk_cannot_become_a_store() -> None:
    disk = FaultyDisk()
    disk.read_only = True
    with pytest.raises(OSError, match="Read-only"):
        Driver(disk)
    assert disk.snapshot() == {}


def test_a_store_on_a_disk_that_became_read_only_can_be_read_and_not_written() -> None:
    driver = Driver()
    driver.append(message("kept"))
    driver.store.close()
    faulty(driver).read_only = True
    after = driver.opened_again()
    assert after.bodies() == ["kept"]
    after.store.execute(Append(messages=(message("refused"),)), T0)
    with pytest.raises(OSError, match="Read-only"):
        after.store.sync()
    with pytest.raises(Unavailable):
        after.append(message("refused"))


@pytest.mark.parametrize("path", ["notes.txt", "statetable/notes.txt", "keyindex/notes.txt"])
def test_a_foreign_file_is_refused_by_name_and_left_alone(path: str) -> None:
    driver = Driver()
    driver.hold("t")
    driver.store.close()
    driver.disk.open(path, create=True).write_at(0, b"mine")
    with pytest.raises(StoreUnusable) as refused:
        driver.opened_again()
    assert refused.value.code in ("store_foreign", "key_index_foreign")
    assert refused.value.fields["path"] == path
    assert faulty(driver).snapshot()[path] == b"mine"
    driver.disk.remove(path)
    assert driver.opened_again().half(0).half_offset == 0


def test_temporary_files_of_a_crash_are_ours() -> None:
    driver = Driver()
    driver.append(message("kept"))
    driver.store.close()
    for name in ("checkpoint.tmp", "format.tmp"):
        driver.disk.open(name, create=True).write_at(0, b"half")
    after = driver.opened_again()
    assert after.bodies() == ["kept"]
    assert after.disk.list("") == sorted(
        {"checkpoint", "checkpoint.old", "format", "commitlog", "consumequeue", "keyindex"}
        | {"statetable"}
    )
