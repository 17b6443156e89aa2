"""The disk in memory: what remains of it after a power cut."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.journal import (
    Create,
    Flush,
    FlushDirectory,
    JournalNote,
    Operation,
    Remove,
    Rename,
    Truncate,
    Write,
)
from escrowmq.testing.survivors import (
    AllBut,
    Only,
    Survivors,
    Torn,
    TornLast,
    everything_survives,
    nothing_survives,
)


def disk_with(**files: bytes) -> FaultyDisk:
    """A disk with these files, durable."""
    return FaultyDisk.load(files)


def after(disk: FaultyDisk, survivors: Survivors) -> dict[str, bytes]:
    """Files that remain after a power cut."""
    return disk.crash(survivors).snapshot()


# Data.


def test_unflushed_bytes_may_be_lost_or_kept() -> None:
    disk = disk_with(f=b"old")
    disk.open("f").write_at(0, b"new!")
    assert disk.snapshot() == {"f": b"new!"}
    assert after(disk, nothing_survives) == {"f": b"old"} == disk.durable_snapshot()
    assert after(disk, everything_survives) == {"f": b"new!"}


def test_flushed_bytes_stay() -> None:
    disk = disk_with(f=b"old")
    file = disk.open("f")
    file.write_at(0, b"new!")
    file.flush()
    file.write_at(0, b"lost")
    assert after(disk, nothing_survives) == {"f": b"new!"}


def test_a_flush_is_for_its_own_file_only() -> None:
    disk = disk_with(f=b"", g=b"")
    f, g = disk.open("f"), disk.open("g")
    f.write_at(0, b"f")
    g.write_at(0, b"g")
    f.flush()
    assert after(disk, nothing_survives) == {"f": b"f", "g": b""}


def test_a_later_append_may_survive_an_earlier_one() -> None:
    disk = disk_with(f=b"ab")
    file = disk.open("f")
    file.write_at(2, b"cd")
    file.write_at(4, b"ef")
    assert after(disk, Only(1)) == {"f": b"ab\0\0ef"}
    assert after(disk, Only(0)) == {"f": b"abcd"}


def test_survivors_are_applied_in_the_order_in_which_they_were_written() -> None:
    disk = disk_with(f=b"....")
    file = disk.open("f")
    file.write_at(0, b"aaa")
    file.write_at(1, b"bbb")
    file.write_at(2, b"c")
    assert after(disk, everything_survives) == {"f": b"abcb"}
    assert after(disk, AllBut(1)) == {"f": b"aac."}
    assert after(disk, AllBut(2)) == {"f": b"abbb"}


def test_a_cut_is_durable_only_with_a_flush() -> None:
    disk = disk_with(f=b"abcdef")
    file = disk.open("f")
    file.truncate(2)
    file.write_at(2, b"X")
    assert after(disk, nothing_survives) == {"f": b"abcdef"}
    assert after(disk, Only(0)) == {"f": b"ab"}
    assert after(disk, Only(1)) == {"f": b"abXdef"}
    file.flush()
    assert after(disk, nothing_survives) == {"f": b"abX"}


def test_a_write_may_be_torn_at_any_byte() -> None:
    disk = disk_with(f=b"....")
    disk.open("f").write_at(2, b"abcd")
    assert [after(disk, TornLast(kept))["f"] for kept in range(5)] == [
        b"....",
        b"..a.",
        b"..ab",
        b"..abc",
        b"..abcd",
    ]


def test_of_a_torn_write_any_ranges_may_survive_with_or_without_its_size() -> None:
    disk = disk_with(f=b"..")
    disk.open("f").write_at(1, b"abcdef")
    assert after(disk, Torn(0, ((1, 2), (3, 4)))) == {"f": b"..b\0d"}
    assert after(disk, Torn(0, ((1, 2), (3, 4)), sized=True)) == {"f": b"..b\0d\0\0"}
    assert after(disk, Torn(0, (), sized=True)) == {"f": b"..\0\0\0\0\0"}


# Names.


def test_a_flushed_new_file_has_no_name_until_its_directory_is_flushed() -> None:
    disk = FaultyDisk()
    disk.make_directory("d")
    file = disk.open("d/f", create=True)
    file.write_at(0, b"abc")
    file.flush()
    assert after(disk, nothing_survives) == {}
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {}
    disk.flush_directory("d")
    assert after(disk, nothing_survives) == {"d/f": b"abc"}


def test_a_name_may_be_durable_before_its_data() -> None:
    disk = FaultyDisk()
    disk.open("f", create=True).write_at(0, b"abc")
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {"f": b""}


def test_data_of_a_file_whose_name_was_lost_is_lost() -> None:
    disk = FaultyDisk()
    disk.open("f", create=True).write_at(0, b"abc")
    assert after(disk, Only(1)) == {}


def test_a_directory_is_durable_at_once() -> None:
    disk = FaultyDisk()
    disk.make_directory("a/b")
    crashed = disk.crash(nothing_survives)
    assert crashed.list("") == ["a"]
    assert crashed.list("a") == ["b"]


def test_a_replaced_file_is_the_old_or_the_new_one() -> None:
    disk = disk_with(f=b"old")
    file = disk.open("f.tmp", create=True)
    file.write_at(0, b"new")
    file.flush()
    disk.flush_directory("")
    disk.rename("f.tmp", "f")
    assert after(disk, nothing_survives) == {"f": b"old", "f.tmp": b"new"}
    assert after(disk, everything_survives) == {"f": b"new"}
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {"f": b"new"}


def test_a_rename_may_survive_the_data_and_the_creation_of_its_file() -> None:
    disk = disk_with(f=b"old")
    disk.open("f.tmp", create=True).write_at(0, b"new")
    disk.rename("f.tmp", "f")
    assert after(disk, Only(2)) == {"f": b""}


def test_a_file_never_has_two_names() -> None:
    disk = disk_with(a=b"x")
    disk.rename("a", "b")
    disk.rename("b", "c")
    assert after(disk, Only(0)) == {"b": b"x"}
    assert after(disk, Only(1)) == {"c": b"x"}


def test_a_removed_file_may_come_back_until_its_directory_is_flushed() -> None:
    disk = disk_with(f=b"abc")
    disk.remove("f")
    assert disk.snapshot() == {}
    assert after(disk, nothing_survives) == {"f": b"abc"}
    assert after(disk, everything_survives) == {}
    disk.flush_directory("")
    assert after(disk, nothing_survives) == {}


def test_removals_survive_in_any_order() -> None:
    disk = disk_with(s0=b"0", s1=b"1")
    disk.remove("s0")
    disk.remove("s1")
    assert after(disk, Only(1)) == {"s0": b"0"}


def test_a_file_made_anew_is_another_file() -> None:
    disk = disk_with(f=b"old")
    disk.remove("f")
    disk.open("f", create=True).write_at(0, b"n")
    assert after(disk, Only(0)) == {}
    assert after(disk, Only(1)) == {"f": b""}
    assert after(disk, Only(2)) == {"f": b"old"}
    assert after(disk, everything_survives) == {"f": b"n"}


def test_a_rename_between_directories_is_refused() -> None:
    disk = disk_with(f=b"")
    disk.make_directory("d")
    with pytest.raises(OSError, match="cross-device"):
        disk.rename("f", "d/f")


# After the power cut.


def test_the_disk_after_a_power_cut_is_a_fresh_one() -> None:
    disk = disk_with(f=b"abc")
    disk.fail_after(DiskCall.WRITE, 0, errno.EIO)
    disk.read_only = True
    crashed = disk.crash(everything_survives)
    crashed.open("f").write_at(0, b"X")
    assert crashed.snapshot() == {"f": b"Xbc"}
    assert after(crashed, nothing_survives) == {"f": b"abc"}
    assert disk.snapshot() == {"f": b"abc"}


def test_the_disk_goes_on_after_an_image_was_taken() -> None:
    disk = disk_with(f=b"")
    file = disk.open("f")
    file.write_at(0, b"a")
    file.flush()
    before = disk.crash_image(nothing_survives)
    file.write_at(1, b"b")
    file.flush()
    assert before.files == {"f": b"a"}
    assert disk.crash_image(nothing_survives).files == {"f": b"ab"}


# The journal.


def test_the_journal_holds_every_operation_and_mark_in_order() -> None:
    disk = FaultyDisk()
    file = disk.open("f", create=True)
    file.write_at(0, b"abc")
    file.truncate(1)
    file.flush()
    disk.mark("acknowledged: 17")
    disk.rename("f", "g")
    disk.flush_directory("")
    file.write_at(1, b"z")
    disk.remove("g")
    expected: list[Operation] = [
        Create(0, "f"),
        Write(0, "f", 0, b"abc"),
        Truncate(0, "f", 1),
        Flush(0, "f"),
        JournalNote("acknowledged: 17"),
        Rename(0, "f", "g"),
        FlushDirectory(""),
        Write(0, "g", 1, b"z"),
        Remove(0, "g"),
    ]
    assert disk.journal == expected
    assert disk.pending == (expected[7], expected[8])


def test_calls_that_change_nothing_are_not_in_the_journal() -> None:
    disk = disk_with(f=b"abc")
    disk.make_directory("d")
    before = len(disk.journal)
    file = disk.open("f", create=True)
    file.read_at(0, 3)
    file.write_at(0, b"")
    disk.remove("g")
    disk.rename("f", "f")
    disk.make_directory("d")
    assert len(disk.journal) == before


def test_a_prefix_of_the_journal_gives_the_disk_as_it_was() -> None:
    disk = disk_with(f=b"abc", g=b"")
    disk.open("g").write_at(0, b"x")
    disk.remove("f")
    seen = disk.snapshot()
    count = len(disk.journal)
    disk.flush_directory("")
    replayed = FaultyDisk.replay(disk.journal[:count], disk.start)
    assert replayed.snapshot() == seen
    assert list(replayed.pending) == replayed.journal == disk.journal[:count]


# In and out.


def test_a_disk_goes_to_a_directory_and_back(tmp_path: Path) -> None:
    disk = FaultyDisk.load({"a/b/f": b"abc", "g": b""}, directories=["empty/inner"])
    disk.open("g").write_at(0, b"seen")
    disk.to_directory(tmp_path / "out")
    back = FaultyDisk.from_directory(tmp_path / "out")
    assert back.snapshot() == {"a/b/f": b"abc", "g": b"seen"} == back.durable_snapshot()
    assert back.list("") == ["a", "empty", "g"]
    assert back.list("empty") == ["inner"]


def test_one_thread_may_flush_while_another_writes() -> None:
    disk = FaultyDisk()
    file = disk.open("f", create=True)
    disk.flush_directory("")

    def flush_often() -> None:
        for _ in range(300):
            file.flush()

    flusher = threading.Thread(target=flush_often)
    flusher.start()
    for number in range(300):
        file.write_at(number, b"x")
        assert len(file.read_at(0, 300)) == number + 1
    flusher.join()
    file.flush()
    assert after(disk, nothing_survives) == {"f": b"x" * 300}
    assert FaultyDisk.replay(disk.journal).durable_snapshot() == {"f": b"x" * 300}
