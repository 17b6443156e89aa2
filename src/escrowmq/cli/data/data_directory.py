"""Refuses a data directory that holds other files, before anything is written to it.

A broker writes ``lock``, ``meta.db`` and ``store/``; the pipeline writes ``lake/`` and
``pipeline/``. In a home directory or a source tree they would be hard to find and to remove.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from escrowmq.model.errors import RequestRefused, StoreUnusable

#: Every store that was opened at least once has this file.
MARK = "store/format"
STORE = "store"
#: Names that a start, a backup, a pipeline or a repair may leave, and ``lost+found``, which is on a
#: freshly formatted disk.
OUR_NAMES = frozenset(
    (
        "damaged",
        "ids.key",
        "ids.new",
        "lake",
        "lock",
        "lost+found",
        "meta.copy",
        "meta.db",
        "pipeline",
        "store",
        "tls",
    )
)
#: The most entries that the error names.
SHOWN_MAX = 3


def refuse_foreign_directory(data: Path) -> None:
    """Refuse a directory that is not new, not empty and not a data directory.

    Raises:
        StoreUnusable: ``data_directory_foreign``, with up to three of the other files.
    """
    if not data.is_dir() or (data / MARK).is_file():
        return
    foreign = (path.name for path in data.iterdir() if not _is_ours(path.name))
    if found := sorted(islice(foreign, SHOWN_MAX)):
        raise StoreUnusable(
            "data_directory_foreign",
            "it holds other files and no data of a broker: give a new or empty directory,"
            f" such as --data-dir {data / 'escrowmq-data'}",
            path=str(data),
            holds=", ".join(found),
        )


def _is_ours(name: str) -> bool:
    # Hidden files (.keep, .snapshot, a service user's .cache) do not mean another use.
    return name in OUR_NAMES or name.startswith((".", "meta.db-"))


def refuse_inside_store(data: Path, directory: Path) -> None:
    """Refuse a backup directory inside a store, because the store would no longer open.

    Raises:
        RequestRefused: ``backup_inside_store``.
    """
    store = (data / STORE).resolve()
    if directory.resolve().is_relative_to(store):
        raise RequestRefused(
            "backup_inside_store",
            "name a directory outside of the data directory",
            path=str(directory),
            data_dir=str(data),
        )
