"""The disk in memory: errors, false flushes and damage."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.journal import Flush, Operation
from escrowmq.testing.survivors import Only, Survivors, everything_survives, nothing_survives


def disk_with(**files: bytes) -> FaultyDisk:
    """A disk with these files, durable."""
    return FaultyDisk.load(files)


def after(disk: FaultyDisk, survivors: Survivors) -> dict[str, bytes]:
    """Files that remain after a power cut."""
    return disk.crash(survivors).snapshot()


def failing(disk: FaultyDisk, kind: DiskCall, number: int) -> None:
    """Make the next call of this kind fail."""
    disk.fail_after(kind, 0, number)


# Faults.


def test_calls_fail_after_a_count_and_recover() -> None:
    disk = disk_with(f=b"")
    file = disk.open("f")
    disk.fail_after(DiskCall.WRITE, 2, errno.EIO, times=2)
    outcomes = []
    for number in range(6):
        try:
            file.write_at(number, b"x")
            outcomes.append("written")
        except OSError as error:
            outcomes.append(errno.errorcode[error.errno or 0])
    assert outcomes == ["written", "written", "EIO", "EIO", "written", "written"]


def test_a_fault_can_last_for_ever_and_be_for_some_paths_only() -> None:
    disk = disk_with(log=b"", queue=b"")
    disk.fail_after(DiskCall.WRITE, 0, errno.EIO, times=None, under="lo")
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            disk.open("log").write_at(0, b"x")
    disk.open("queue").write_at(0, b"x")
    assert disk.snapshot() == {"log": b"", "queue": b"x"}


def test_a_failing_write_may_have_written_its_beginning() -> None:
    disk = disk_with(f=b"")
    file = disk.open("f")
    disk.fail_after(DiskCall.WRITE, 0, errno.ENOSPC, short_bytes=2)
    with pytest.raises(OSError, match="No space left"):
        file.write_at(0, b"abc")
    assert disk.snapshot() == {"f": b"ab"}


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (DiskCall.READ, lambda disk: disk.open("f").read_at(0, 1)),
        (DiskCall.TRUNCATE, lambda disk: disk.open("f").truncate(0)),
        (DiskCall.FLUSH, lambda disk: disk.open("f").flush()),
        (DiskCall.CREATE, lambda disk: disk.open("g", create=True)),
        (DiskCall.RENAME, lambda disk: disk.rename("f", "g")),
        (DiskCall.REMOVE, lambda disk: disk.remove("f")),
        (DiskCall.MAKE_DIRECTORY, lambda disk: disk.make_directory("d")),
        (DiskCall.FLUSH_DIRECTORY, lambda disk: disk.flush_directory("")),
    ],
)
def test_every_call_can_be_made_to_fail(
    kind: DiskCall, call: Callable[[FaultyDisk], object]
) -> None:
    disk = disk_with(f=b"abc")
    failing(disk, kind, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        call(disk)
    assert disk.snapshot() == {"f": b"abc"}
    assert disk.list("") == ["f"]
    call(disk)


def test_after_a_failed_flush_reads_still_show_what_is_lost() -> None:
    disk = disk_with(f=b"")
    file = disk.open("f")
    file.write_at(0, b"abc")
    failing(disk, DiskCall.FLUSH, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    assert file.read_at(0, 3) == b"abc"
    assert after(disk, everything_survives) == {"f": b""}


def test_a_later_flush_does_not_bring_back_what_a_failed_one_lost() -> None:
    disk = disk_with(f=b"")
    file = disk.open("f")
    file.write_at(0, b"abc")
    failing(disk, DiskCall.FLUSH, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    file.write_at(3, b"def")
    file.flush()
    assert disk.snapshot() == {"f": b"abcdef"}
    assert after(disk, nothing_survives) == {"f": b"\0\0\0def"}
    file.write_at(0, b"abc")
    file.flush()
    assert after(disk, nothing_survives) == {"f": b"abcdef"}


def test_a_part_may_have_reached_the_disk_before_the_flush_failed() -> None:
    disk = disk_with(f=b"")
    file = disk.open("f")
    file.write_at(0, b"abc")
    file.write_at(3, b"def")
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO, survivors=Only(1))
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    assert after(disk, nothing_survives) == {"f": b"\0\0\0def"}
    assert FaultyDisk.replay(disk.journal, disk.start).durable_snapshot() == {"f": b"\0\0\0def"}


def test_names_still_wait_after_a_failed_flush_of_their_directory() -> None:
    disk = FaultyDisk()
    disk.open("f", create=True)
    failing(disk, DiskCall.FLUSH_DIRECTORY, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.flush_directory("")
    assert after(disk, nothing_survives) == {}
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {"f": b""}


def test_a_read_only_disk_refuses_every_change() -> None:
    disk = disk_with(f=b"abc")
    file = disk.open("f")
    disk.read_only = True
    changes = (
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        lambda: disk.open("g", create=True),
        lambda: disk.rename("f", "g"),
        lambda: disk.remove("f"),
        lambda: disk.make_directory("d"),
    )
    for change in changes:
        with pytest.raises(OSError, match="Read-only"):
            change()
    assert file.read_at(0, 3) == b"abc"
    assert disk.journal == []


def test_a_full_disk_takes_what_fits() -> None:
    disk = disk_with(f=b"abc", g=b"de")
    disk.capacity_bytes = 8
    file = disk.open("f")
    file.write_at(0, b"ABC")
    with pytest.raises(OSError, match="No space left"):
        file.write_at(3, b"123456")
    assert disk.snapshot() == {"f": b"ABC123", "g": b"de"}
    with pytest.raises(OSError, match="No space left"):
        file.write_at(6, b"7")
    with pytest.raises(OSError, match="No space left"):
        file.truncate(100)
    disk.remove("g")
    file.write_at(6, b"78")
    assert file.size() == 8


def test_a_lying_flush_makes_nothing_durable() -> None:
    disk = FaultyDisk()
    disk.lying_flush = True
    file = disk.open("f", create=True)
    file.write_at(0, b"abc")
    file.flush()
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {"f": b""}
    disk.lying_flush_directory = True
    disk.rename("f", "g")
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {"f": b""}
    assert FaultyDisk.replay(disk.journal).durable_snapshot() == {"f": b""}


def test_a_bug_is_planted_at_the_one_door() -> None:
    class ForgetsToFlushTheLog(FaultyDisk):
        def perform(self, operation: Operation) -> None:
            if not (isinstance(operation, Flush) and operation.path == "log"):
                super().perform(operation)

    disk = ForgetsToFlushTheLog.load({"log": b"", "queue": b""})
    for path in ("log", "queue"):
        file = disk.open(path)
        file.write_at(0, b"abc")
        file.flush()
    assert after(disk, nothing_survives) == {"log": b"", "queue": b"abc"}


# Damage.


def test_a_flipped_bit_is_seen_and_stays() -> None:
    disk = disk_with(f=b"\x00\x00")
    disk.flip_bit("f", 1, 3)
    assert disk.snapshot() == {"f": b"\x00\x08"}
    assert after(disk, nothing_survives) == {"f": b"\x00\x08"}


def test_a_flipped_bit_of_pending_data_is_flushed_with_it() -> None:
    disk = disk_with(f=b"\x00")
    file = disk.open("f")
    file.write_at(0, b"\x01\x01")
    file.truncate(2)
    disk.flip_bit("f", 0, 7)
    disk.flip_bit("f", 1, 7)
    assert after(disk, nothing_survives) == {"f": b"\x80"}
    assert after(disk, everything_survives) == {"f": b"\x81\x81"} == disk.snapshot()
    file.flush()
    assert after(disk, nothing_survives) == {"f": b"\x81\x81"}
    assert FaultyDisk.replay(disk.journal, disk.start).durable_snapshot() == disk.snapshot()


@pytest.mark.parametrize(("byte_offset", "bit"), [(1, 0), (-1, 0), (0, 8), (0, -1)])
def test_only_bits_that_are_there_can_be_flipped(byte_offset: int, bit: int) -> None:
    with pytest.raises(ValueError, match="no bit"):
        disk_with(f=b"x").flip_bit("f", byte_offset, bit)
