"""The port to the file system: the real disk and the double behave alike."""

from __future__ import annotations

import array
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.store.disk.disk import Disk, File, OsDisk, OsFile, checked_path
from escrowmq.testing.faulty_disk import FaultyDisk


@pytest.fixture(params=["os", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """An empty disk of either kind, with its root made."""
    either: Disk = OsDisk(tmp_path / "data") if request.param == "os" else FaultyDisk()
    either.make_directory("")
    return either


@pytest.fixture
def file(disk: Disk) -> Iterator[File]:
    """An empty file "f"."""
    opened = disk.open("f", create=True)
    yield opened
    opened.close()


def content(disk: Disk, path: str) -> bytes:
    """Read a whole file."""
    opened = disk.open(path)
    try:
        return opened.read_at(0, opened.size() + 1)
    finally:
        opened.close()


def fill(disk: Disk, path: str, data: bytes) -> None:
    """Write a file with this content."""
    opened = disk.open(path, create=True)
    opened.truncate(0)
    opened.write_at(0, data)
    opened.close()


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Limit the size of files: a write across the limit is short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_written_bytes_are_read(file: File) -> None:
    file.write_at(0, b"hello world")
    file.write_at(6, b"there")
    assert file.read_at(0, 11) == b"hello there"
    assert file.read_at(6, 3) == b"the"


def test_a_read_at_the_end_gives_less(file: File) -> None:
    file.write_at(0, b"abc")
    assert file.read_at(1, 100) == b"bc"
    assert file.read_at(3, 10) == b""
    assert file.read_at(100, 10) == b""
    assert file.read_at(1, 0) == b""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_can_be_written(file: File, kind: Callable[[bytes], bytes]) -> None:
    file.write_at(2, kind(b"abc"))
    assert file.read_at(0, 9) == b"\0\0abc"


def test_a_view_of_wider_items_is_written_to_its_last_byte(file: File) -> None:
    numbers = array.array("Q", range(1_000))
    file.write_at(0, memoryview(numbers))
    assert file.read_at(0, 8_001) == numbers.tobytes()


def test_the_writer_may_reuse_its_buffer(file: File) -> None:
    buffer = bytearray(b"first")
    file.write_at(0, buffer)
    buffer[:] = b"other"
    assert file.read_at(0, 5) == b"first"


def test_a_gap_reads_as_zeros(file: File) -> None:
    file.write_at(5, b"x")
    assert file.size() == 6
    assert file.read_at(0, 6) == b"\0\0\0\0\0x"


def test_writing_nothing_changes_nothing(file: File) -> None:
    file.write_at(10, b"")
    assert file.size() == 0


def test_truncate_cuts_and_fills_up_with_zeros(file: File) -> None:
    file.write_at(0, b"abcdef")
    file.truncate(3)
    assert file.size() == 3
    file.truncate(5)
    assert file.read_at(0, 9) == b"abc\0\0"


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.read_at(-1, 1),
        lambda file: file.write_at(-1, b"x"),
        lambda file: file.truncate(-1),
    ],
)
def test_a_negative_position_is_refused(file: File, call: Callable[[File], object]) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        call(file)


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.read_at(0, 1),
        lambda file: file.write_at(0, b"x"),
        lambda file: file.truncate(0),
        lambda file: file.size(),
        lambda file: file.flush(),
    ],
)
def test_a_closed_file_cannot_be_used(file: File, call: Callable[[File], object]) -> None:
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        call(file)


def test_two_handles_see_the_same_file(disk: Disk, file: File) -> None:
    other = disk.open("f")
    file.write_at(0, b"abc")
    assert other.read_at(0, 3) == b"abc"
    file.close()
    other.flush()
    assert other.size() == 3
    other.close()


def test_a_missing_file_is_opened_only_on_request(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("f")
    fill(disk, "f", b"abc")
    assert content(disk, "f") == b"abc"


def test_opening_with_create_keeps_what_is_there(disk: Disk) -> None:
    fill(disk, "f", b"abc")
    disk.open("f", create=True).close()
    assert content(disk, "f") == b"abc"


def test_a_file_needs_its_directory(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("d/f", create=True)
    fill(disk, "f", b"")
    with pytest.raises(NotADirectoryError):
        disk.open("f/g", create=True)


def test_a_directory_is_not_a_file(disk: Disk) -> None:
    disk.make_directory("d")
    with pytest.raises(IsADirectoryError):
        disk.open("d", create=True)
    with pytest.raises(IsADirectoryError):
        disk.remove("d")
    with pytest.raises(IsADirectoryError):
        disk.open("")


def test_directories_are_made_with_their_parents(disk: Disk) -> None:
    disk.make_directory("a/b/c")
    disk.make_directory("a/b/c")
    disk.make_directory("a/b")
    fill(disk, "a/b/c/f", b"")
    assert disk.exists("a")
    assert disk.exists("a/b/c")
    assert disk.exists("a/b/c/f")
    assert not disk.exists("a/x")
    assert not disk.exists("a/b/c/f/g")


def test_many_directories_can_be_made_at_once(disk: Disk) -> None:
    paths = [f"a/t{number}/0" for number in range(20)]
    disk.make_directories(paths)
    disk.make_directories(paths[:2])
    assert all(disk.exists(path) for path in paths)


def test_many_files_can_be_flushed_at_once(disk: Disk) -> None:
    disk.make_directories(paths := [f"t{number}" for number in range(20)])
    files = [disk.open(f"{path}/f", create=True) for path in paths]
    for file in files:
        file.write_at(0, b"x")
    disk.flush_all(files, paths)
    files[7].close()
    with pytest.raises(OSError, match="Bad file"):
        disk.flush_all(files, paths)


def test_a_disk_says_what_is_free(disk: Disk) -> None:
    assert disk.free_bytes() > 0


def test_a_directory_cannot_take_the_place_of_a_file(disk: Disk) -> None:
    fill(disk, "f", b"")
    with pytest.raises(NotADirectoryError):
        disk.make_directory("f")
    with pytest.raises(NotADirectoryError):
        disk.make_directory("f/g")


def test_names_are_listed_sorted(disk: Disk) -> None:
    disk.make_directory("d/e")
    for name in ("00020", "00003", "00100"):
        fill(disk, f"d/{name}", b"")
    assert disk.list("d") == ["00003", "00020", "00100", "e"]
    assert disk.list("") == disk.list(".") == ["d"]


def test_a_missing_directory_and_a_file_list_nothing(disk: Disk) -> None:
    fill(disk, "f", b"")
    assert disk.list("nowhere") == []
    assert disk.list("f") == []


def test_rename_replaces_in_one_step(disk: Disk) -> None:
    fill(disk, "new", b"old content")
    fill(disk, "new.tmp", b"new content")
    disk.rename("new.tmp", "new")
    assert disk.list("") == ["new"]
    assert content(disk, "new") == b"new content"
    disk.rename("new", "new")
    assert content(disk, "new") == b"new content"


def test_an_open_file_follows_its_rename(disk: Disk, file: File) -> None:
    disk.rename("f", "g")
    file.write_at(0, b"abc")
    file.flush()
    assert content(disk, "g") == b"abc"


def test_a_missing_file_cannot_be_renamed(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.rename("f", "g")
    fill(disk, "f", b"")
    with pytest.raises(FileNotFoundError):
        disk.rename("f", "d/f")


def test_a_file_cannot_be_renamed_to_a_directory(disk: Disk) -> None:
    fill(disk, "f", b"")
    disk.make_directory("d")
    with pytest.raises(IsADirectoryError):
        disk.rename("f", "d")


def test_removing_twice_is_no_error(disk: Disk) -> None:
    fill(disk, "f", b"")
    disk.remove("f")
    disk.remove("f")
    assert disk.list("") == []


def test_a_removed_file_stays_readable_while_it_is_open(disk: Disk, file: File) -> None:
    file.write_at(0, b"abc")
    disk.remove("f")
    assert file.read_at(0, 3) == b"abc"
    assert not disk.exists("f")
    fill(disk, "f", b"new")
    assert file.read_at(0, 3) == b"abc"


def test_a_directory_can_be_flushed(disk: Disk) -> None:
    disk.make_directory("d")
    fill(disk, "d/f", b"")
    disk.flush_directory("d")
    disk.flush_directory("")
    with pytest.raises(FileNotFoundError):
        disk.flush_directory("nowhere")
    with pytest.raises(NotADirectoryError):
        disk.flush_directory("d/f")


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "a/../../b", "a//b", "a/", "a/./b", "a\0b"])
def test_a_path_that_might_leave_the_root_is_refused(disk: Disk, path: str) -> None:
    for call in (disk.open, disk.exists, disk.list, disk.make_directory, disk.remove):
        with pytest.raises(ValueError, match="below the disk's root"):
            call(path)
    with pytest.raises(ValueError, match="below the disk's root"):
        disk.rename("f", path)


def test_plain_paths_are_left_as_they_are() -> None:
    assert checked_path("a/b.c/..d") == "a/b.c/..d"
    assert checked_path(".") == ""


# Only the real disk.


def test_a_short_write_is_continued_until_it_fails(tmp_path: Path) -> None:
    file = OsDisk(tmp_path).open("f", create=True)
    with file_size_limit(5), pytest.raises(OSError, match="File too large") as caught:
        file.write_at(0, b"0123456789")
    assert caught.value.errno == errno.EFBIG
    assert file.read_at(0, 10) == b"01234"
    file.close()


@pytest.mark.skipif(not Path("/proc/kallsyms").is_file(), reason="no file with short reads")
def test_a_short_read_is_continued_to_the_end() -> None:
    # The kernel returns this file in pieces, however much is requested.
    descriptor = os.open("/proc/kallsyms", os.O_RDONLY)
    one_call = os.pread(descriptor, 100_000, 0)
    file = OsFile(descriptor)
    assert len(one_call) < 100_000
    assert len(file.read_at(0, 100_000)) == 100_000
    file.close()


def test_directories_that_a_killed_process_left_are_taken_over(tmp_path: Path) -> None:
    OsDisk(tmp_path).make_directory("a/b")
    OsDisk(tmp_path).make_directory("a/b/c")
    assert (tmp_path / "a/b/c").is_dir()


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "a" / "b")
    assert disk.list("") == []
    disk.make_directory("c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_relative_root_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = OsDisk(Path("data"))
    monkeypatch.chdir("/")
    disk.make_directory("d")
    assert (tmp_path / "data" / "d").is_dir()


def test_others_may_not_read_what_is_stored(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.make_directory("d")
    disk.open("d/f", create=True).close()
    assert (tmp_path / "d").stat().st_mode & 0o007 == 0
    assert (tmp_path / "d" / "f").stat().st_mode & 0o007 == 0


def test_a_disk_to_read_only_refuses_every_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"as it was")
    disk = OsDisk(tmp_path, read_only=True)
    assert disk.open("a").read_at(0, 100) == b"as it was"
    assert disk.list("") == ["a"]
    assert disk.exists("a")
    changes: list[Callable[[], object]] = [
        lambda: disk.open("b", create=True),
        lambda: disk.make_directory("c"),
        lambda: disk.rename("a", "b"),
        lambda: disk.remove("a"),
        lambda: disk.flush_directory(""),
    ]
    for change in changes:
        with pytest.raises(OSError, match="Read-only") as refused:
            change()
        assert refused.value.errno == errno.EROFS
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.open("a").write_at(0, b"changed")
    assert (tmp_path / "a").read_bytes() == b"as it was"
