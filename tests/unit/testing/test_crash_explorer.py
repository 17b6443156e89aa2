"""Every moment at which the power may fail."""

from __future__ import annotations

import pytest

from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import JournalNote, Write
from escrowmq.testing.survivors import (
    Survivors,
    everything_survives,
    interesting_survivors,
    nothing_survives,
)


def replace_atomically(disk: FaultyDisk, content: bytes, *, flush: bool = True) -> None:
    """Replace a small file in the usual way; without the flush, with the usual bug."""
    file = disk.open("d/f.tmp", create=True)
    file.write_at(0, content)
    if flush:
        file.flush()
    disk.rename("d/f.tmp", "d/f")
    disk.flush_directory("d")
    disk.mark("replaced")


def images(disk: FaultyDisk) -> set[tuple[int, DiskImage]]:
    """All images a crash may leave, each with the number of notes made by then."""
    found = set()
    for point in CrashExplorer(disk.journal, disk.start):
        for survivors in interesting_survivors(point.pending):
            found.add((len(point.notes), point.crash_image(survivors)))
    return found


def contents(disk: FaultyDisk) -> set[tuple[int, bytes | None]]:
    """The same for the one file only."""
    return {(notes, image.files.get("d/f")) for notes, image in images(disk)}


def test_every_prefix_is_as_the_disk_was_then() -> None:
    disk = FaultyDisk.load({"d/f": b"old"})
    replace_atomically(disk, b"new content")
    positions = []
    for point in CrashExplorer(disk.journal, disk.start):
        positions.append(point.position)
        then = FaultyDisk.replay(disk.journal[: point.position], disk.start)
        assert point.pending == then.pending
        assert point.image().files == then.snapshot()
        choices: list[Survivors] = [nothing_survives, everything_survives]
        for survivors in choices:
            assert point.crash(survivors).snapshot() == then.crash(survivors).snapshot()
    assert positions == list(range(len(disk.journal) + 1))


def test_it_finds_nothing_wrong_with_an_atomic_replacement() -> None:
    disk = FaultyDisk.load({"d/f": b"old"})
    replace_atomically(disk, b"new content")
    assert contents(disk) == {(0, b"old"), (0, b"new content"), (1, b"new content")}


def test_it_finds_the_missing_flush() -> None:
    disk = FaultyDisk.load({"d/f": b"old"})
    replace_atomically(disk, b"new content", flush=False)
    assert (1, b"") in contents(disk)


def test_it_finds_the_lying_directory() -> None:
    disk = FaultyDisk.load({"d/f": b"old"})
    disk.lying_flush_directory = True
    replace_atomically(disk, b"new content")
    assert (1, b"old") in contents(disk)


def test_a_power_cut_during_the_recovery_can_be_explored_too() -> None:
    disk = FaultyDisk.load({"d/f": b"old"})
    disk.open("d/f").write_at(3, b"+torn")
    crashed = disk.crash(everything_survives)
    crashed.open("d/f").truncate(3)
    assert {image.files["d/f"] for _, image in images(crashed)} == {b"old+torn", b"old"}


def test_it_tells_what_was_done_last() -> None:
    disk = FaultyDisk.load({"f": b""})
    disk.open("f").write_at(0, b"x")
    disk.mark("done")
    explorer = CrashExplorer(disk.journal, disk.start)
    assert [point.last for point in explorer] == [None, Write(0, "f", 0, b"x"), JournalNote("done")]
    assert explorer.notes == ["done"]


def test_one_prefix_can_be_seen_again() -> None:
    disk = FaultyDisk.load({"f": b""})
    for number in range(5):
        disk.mark(number)
    explorer = CrashExplorer(disk.journal, disk.start)
    explorer.advance_to(3)
    assert explorer.notes == [0, 1, 2]
    for position in (2, 6):
        with pytest.raises(ValueError, match="cannot go from 3"):
            explorer.advance_to(position)


def test_equal_images_are_told_by_their_content() -> None:
    one = DiskImage.of({"d/f": b"abc"})
    other = DiskImage.of({"d/f": bytes(bytearray(b"abc"))}, directories=["d"])
    assert one == other
    assert len({one, other, DiskImage.of({"d/f": b"abd"}), DiskImage.of({"d/f": b""})}) == 3
