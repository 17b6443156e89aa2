"""A directory for a process's temporary files. Directories of dead processes are removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_in(cache: Path) -> Iterator[Path]:
    """Yield this process's directory, which exists as long as the block runs.

    The process's temporary files go there too, such as those that PySpark writes to start Java. If
    this process is killed, the next process removes the directory.
    """
    folder = cache / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not _is_running(old.name):
            shutil.rmtree(old, ignore_errors=True)
    scratch = folder / str(os.getpid())
    scratch.mkdir(exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        yield scratch
    finally:
        tempfile.tempdir = before
        shutil.rmtree(scratch, ignore_errors=True)


def _is_running(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except PermissionError:
        return True
    except (ValueError, OSError):
        return False
    return True
