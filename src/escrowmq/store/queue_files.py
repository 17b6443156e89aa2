"""The files of consume queues: how they are named, and which of them stay open."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.store.disk import Disk, File

DIRECTORY = "consumequeue"
FILE_ENTRIES = 262_144
OPEN_FILES_MAX = 256


def files_of(number: int) -> str:
    """How the paths of a queue's files begin: with its number, in one directory for all queues.

    No file system takes a number for another one, as some take ``Orders`` for ``orders``; and ten
    thousand new queues need no directory each.
    """
    return f"{DIRECTORY}/{number:08d}."


def path_of(prefix: str, entry: int) -> str:
    """The file that holds this entry of a queue."""
    return f"{prefix}{entry - entry % FILE_ENTRIES:020d}"


def found_files(disk: Disk, prefix: str, topic: str, queue_id: int, entry: int) -> str:
    """The prefix of the files that hold this entry: earlier releases named directories by topic.

    A file system that ignores case mixed the queues of topics such as ``Orders`` and ``orders``
    there, so what it holds is not believed.
    """
    by_topic = f"{DIRECTORY}/{topic}/{queue_id}/"
    is_by_number = disk.exists(path_of(prefix, entry))
    if is_by_number or disk.exists(DIRECTORY.upper()):
        return prefix
    return by_topic if disk.exists(path_of(by_topic, entry)) else prefix


class OpenFiles:
    """The queue files that were used last; with ten thousand topics not all can stay open."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """An open handle; it may be closed by the next call."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._disk.open(path)
            if len(self._files) >= OPEN_FILES_MAX:
                self._files.popitem(last=False)[1].close()
        self._files[path] = file
        return file

    def release(self, paths: Iterable[str]) -> list[File]:
        """Those of these files that are open, for the caller to close."""
        found = (self._files.pop(path, None) for path in paths)
        return [file for file in found if file is not None]

    def close(self) -> None:
        """Close all."""
        for file in self._files.values():
            file.close()
        self._files.clear()
