"""One process per data directory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk.lock import DirectoryLock, LockHolder, holder_of

HOLDER = """
import sys
from pathlib import Path
from escrowmq.store.disk.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
lock.close()
"""

FORKER = """
import os, sys
from pathlib import Path
from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    lock.close()
    os._exit(0)
os.waitpid(child, 0)
try:
    DirectoryLock(Path(sys.argv[1]))
except StoreUnusable as error:
    print(error.code)
"""

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def another_process_holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a real process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def refusal(path: Path) -> StoreUnusable:
    """The error that a second lock raises."""
    with pytest.raises(StoreUnusable) as caught:
        DirectoryLock(path)
    return caught.value


def test_a_second_process_is_refused_and_told_the_holder(tmp_path: Path) -> None:
    with another_process_holding(tmp_path) as holder:
        error = refusal(tmp_path)
    assert error.code == "data_directory_locked"
    assert error.fields == {"path": str(tmp_path), "pid": holder.pid}
    assert "stop it" in error.message


def test_a_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        assert refusal(tmp_path).fields["pid"] == os.getpid()
        # The refused lock must not have released the first one.
        assert refusal(tmp_path).code == "data_directory_locked"


def test_closing_lets_the_next_one_in(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    first.close()
    first.close()
    with DirectoryLock(tmp_path):
        assert refusal(tmp_path).code == "data_directory_locked"
    with another_process_holding(tmp_path):
        pass


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    with another_process_holding(tmp_path) as holder:
        holder.kill()
        holder.wait()
        with DirectoryLock(tmp_path):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_the_file_holds_the_pid_and_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("a longer line of something else\n1234\n")
    before = (tmp_path / "lock").stat().st_ino
    with DirectoryLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "lock").stat().st_ino == before


def test_a_holder_that_left_no_number_is_refused_all_the_same(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        (tmp_path / "lock").write_text("")
        assert refusal(tmp_path).fields["pid"] is None


def test_the_directory_is_made_if_need_be(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "a" / "data"):
        assert (tmp_path / "a" / "data" / "lock").is_file()


def test_a_forked_child_cannot_let_go_of_its_parents_lock(tmp_path: Path) -> None:
    # In a separate process: forking one with threads, such as the test runner, is unsafe.
    done = subprocess.run(
        [sys.executable, "-c", FORKER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout == "data_directory_locked\n"


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    error = refusal(tmp_path / "file" / "data")
    assert error.code == "data_directory_read_only"
    assert error.fields == {
        "path": str(tmp_path / "file" / "data"),
        "reason": "Not a directory",
    }


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no file system that refuses root")
def test_a_directory_that_takes_no_files_cannot_be_written() -> None:
    # The kernel lets no user, not even root, create files there.
    error = refusal(Path("/sys/kernel"))
    assert error.code == "data_directory_read_only"
    assert error.fields["reason"] in ("Permission denied", "Read-only file system")


def test_a_disk_that_takes_no_bytes_cannot_be_written(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        error = refusal(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.code == "data_directory_read_only"
    with DirectoryLock(tmp_path):
        pass


def test_the_holder_of_a_directory_can_be_read_without_holding_it(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    with another_process_holding(tmp_path) as process:
        assert holder_of(tmp_path) == LockHolder(process.pid)
    with DirectoryLock(tmp_path):
        (tmp_path / "lock").write_text("")
        assert holder_of(tmp_path) == LockHolder(None)
    assert holder_of(tmp_path) is None
    with DirectoryLock(tmp_path):
        pass
