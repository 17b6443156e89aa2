"""Names of consume queue files, and a cache of open ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.store.disk.disk import Disk, File

DIRECTORY = "consumequeue"
FILE_ENTRIES = 262_144
OPEN_FILES_MAX = 256


def files_of(number: int) -> str:
    """Return the prefix of a queue's file paths: its number, in one directory for all queues.

    Numbers stay distinct on file systems that ignore case, unlike ``Orders`` and ``orders``. And
    ten thousand new queues do not need ten thousand directories.
    """
    return f"{DIRECTORY}/{number:08d}."


def path_of(prefix: str, entry: int) -> str:
    """Return the path of the file that holds this entry of a queue."""
    return f"{prefix}{entry - entry % FILE_ENTRIES:020d}"


def found_files(disk: Disk, prefix: str, topic: str, queue_id: int, entry: int) -> str:
    """Return the prefix of the files with this entry; earlier releases had a directory per topic.

    On a file system that ignores case, such directories mixed the queues of topics such as
    ``Orders`` and ``orders``, so they are not used there.
    """
    by_topic = f"{DIRECTORY}/{topic}/{queue_id}/"
    is_by_number = disk.exists(path_of(prefix, entry))
    if is_by_number or disk.exists(DIRECTORY.upper()):
        return prefix
    return by_topic if disk.exists(path_of(by_topic, entry)) else prefix


class OpenFiles:
    """Cache of recently used queue files; with ten thousand topics not all can stay open."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """Return an open handle, which the next call may close."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._disk.open(path)
            if len(self._files) >= OPEN_FILES_MAX:
                self._files.popitem(last=False)[1].close()
        self._files[path] = file
        return file

    def release(self, paths: Iterable[str]) -> list[File]:
        """Remove and return the open ones among these files, for the caller to close."""
        found = (self._files.pop(path, None) for path in paths)
        return [file for file in found if file is not None]

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
