"""The file with a store's format version and the values chosen when the store was created."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.disk import read_whole, write_whole
from escrowmq.store.log import commit_log
from escrowmq.store.queue import queue_files
from escrowmq.store.states.choosing import STATE_NAMES
from escrowmq.store.table import state_files

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk

PATH = "format"
TEMPORARY = "format.tmp"
VERSION = 4
"""Version 2 added epochs to the log; version 3 topics, consumer groups and settings; 4 users."""
READABLE = (1, 2, 3, 4)
DIRECTORIES = (
    commit_log.DIRECTORY,
    queue_files.DIRECTORY,
    state_files.DIRECTORY,
    "keyindex",
)
#: Names that only some state stores leave.
OPTIONAL = STATE_NAMES


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """Values fixed when the store is created; only ``upgrade`` changes the version."""

    #: Version of all files of the store, except files that state their own.
    version: int
    #: Part of every frame's checksum, so that a frame of another store is never accepted.
    seed: int
    #: Rows in a file of the state table.
    chunk_rows: int
    #: CRC-32 of the fields above: with a wrong value, the whole store would look damaged.
    check: int


def chosen(seed: int, chunk_rows: int) -> Format:
    """Return the format of a new store."""
    check = _check(VERSION, seed, chunk_rows)
    return Format(version=VERSION, seed=seed, chunk_rows=chunk_rows, check=check)


def _check(version: int, seed: int, chunk_rows: int) -> int:
    return crc32(f"{version} {seed} {chunk_rows}".encode())


def read_or_make(disk: Disk, chunk_rows: int) -> Format:
    """Return the store's format; create a store if the directory is empty."""
    if disk.exists(PATH):
        return read(disk)
    # One of our directories may exist, but empty: an operator may have linked it to a volume.
    names = [
        name
        for name in disk.list("")
        if name != TEMPORARY and (name not in DIRECTORIES or disk.list(name))
    ]
    if names:
        raise StoreUnusable(
            "store_foreign",
            "this directory holds files but no store; give an empty one",
            names=names[:5],
        )
    made = chosen(secrets.randbits(32), chunk_rows)
    disk.make_directory("")
    _write(disk, made)
    return made


def upgrade(disk: Disk) -> None:
    """Raise the store's version, so that older releases refuse to open it."""
    found = read(disk)
    if found.version != VERSION:
        _write(disk, chosen(found.seed, found.chunk_rows))


def _write(disk: Disk, form: Format) -> None:
    write_whole(disk, TEMPORARY, msgspec.json.encode(form))
    disk.rename(TEMPORARY, PATH)
    disk.flush_directory("")


def read(disk: Disk) -> Format:
    """Read the format of an existing store."""
    data = read_whole(disk, PATH)
    try:
        stated = msgspec.json.decode(data, type=dict)
        version = stated["version"]
        if version not in READABLE:
            raise StoreUnusable(
                "store_version_unknown",
                "a newer EscrowMQ made this store; use that one",
                version=version,
                known=VERSION,
            )
        found = msgspec.convert(stated, Format)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            "format_damaged", "restore the file from a backup", path=PATH, cause=str(error)
        ) from None
    if found.check != _check(found.version, found.seed, found.chunk_rows):
        raise StoreCorrupt(
            "format_damaged",
            "restore the file from a backup",
            path=PATH,
            cause="the checksum is wrong",
        )
    return found
