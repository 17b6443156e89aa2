"""A directory is a store, becomes one, or is left alone."""

from __future__ import annotations

import errno
import json

import msgspec
import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.recovery.format import PATH, TEMPORARY, VERSION, chosen, read_or_make
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.survivors import everything_survives, nothing_survives


def stated(**fields: object) -> FaultyDisk:
    return FaultyDisk.load({PATH: json.dumps(fields).encode()})


def test_an_empty_directory_becomes_a_store() -> None:
    disk = FaultyDisk()
    made = read_or_make(disk, chunk_rows=16)
    assert made.version == VERSION
    assert made.chunk_rows == 16
    assert read_or_make(disk, chunk_rows=16) == made


def test_the_first_format_choice_stays() -> None:
    disk = FaultyDisk()
    made = read_or_make(disk, chunk_rows=16)
    assert read_or_make(disk, chunk_rows=32) == made


def test_two_stores_have_different_seeds() -> None:
    seeds = {read_or_make(FaultyDisk(), 8).seed for _ in range(4)}
    assert len(seeds) > 1


def test_it_is_durable_before_anything_is_made_with_it() -> None:
    disk = FaultyDisk()
    made = read_or_make(disk, 8)
    assert read_or_make(disk.crash(nothing_survives), 8) == made


@pytest.mark.parametrize("kind", [DiskCall.CREATE, DiskCall.WRITE, DiskCall.FLUSH, DiskCall.RENAME])
def test_a_start_that_failed_can_be_tried_again(kind: DiskCall) -> None:
    disk = FaultyDisk()
    disk.fail_after(kind, 0, errno.ENOSPC, short_bytes=3)
    with pytest.raises(OSError, match="No space"):
        read_or_make(disk, 8)
    for again in (disk, disk.crash(nothing_survives), disk.crash(everything_survives)):
        assert read_or_make(again, 8).chunk_rows == 8
        assert not again.exists(TEMPORARY)


@pytest.mark.parametrize("name", ["notes.txt", "photos/cat.jpg", "commitlog/00000000000000000000"])
def test_a_directory_with_something_else_in_it_is_left_as_it_is(name: str) -> None:
    disk = FaultyDisk.load({name: b"mine"})
    with pytest.raises(StoreUnusable) as refused:
        read_or_make(disk, 8)
    assert refused.value.code == "store_foreign"
    assert refused.value.fields["names"] == [name.partition("/")[0]]
    assert disk.snapshot() == {name: b"mine"}


def test_our_own_directory_may_be_there_if_it_is_empty() -> None:
    """An operator may have put a link to another volume there."""
    disk = FaultyDisk.load({}, ["commitlog", "keyindex"])
    assert read_or_make(disk, 8).chunk_rows == 8


def test_a_store_of_an_unknown_version_is_refused() -> None:
    """Even if this version cannot read the rest of the file."""
    for disk in (
        stated(version=VERSION + 1, seed=1, chunk_rows=8),
        stated(version=7, shape="round"),
    ):
        with pytest.raises(StoreUnusable) as refused:
            read_or_make(disk, 8)
        assert refused.value.code == "store_version_unknown"
        assert refused.value.fields["known"] == VERSION


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{}",  # no version
        b'{"version": 1}',  # no seed
        b'{"version": 1, "seed": "x", "chunk_rows": 8}',
        b'{"version": "\xff"}',
        b'{"version": 1, "seed": 7, "chunk_rows": 8, "check": 9}',  # a wrong check value
    ],
)
def test_a_damaged_file_is_not_taken_for_an_empty_directory(content: bytes) -> None:
    with pytest.raises(StoreCorrupt) as refused:
        read_or_make(FaultyDisk.load({PATH: content}), 8)
    assert refused.value.code == "format_damaged"
    assert refused.value.fields["path"] == PATH


def test_a_fixed_format_is_taken_as_it_is() -> None:
    made = chosen(7, 9)
    disk = stated(**msgspec.structs.asdict(made))
    assert read_or_make(disk, 8) == made
