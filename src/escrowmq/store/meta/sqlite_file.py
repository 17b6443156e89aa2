"""The SQLite file behind ``Meta``: opens, identifies, checks and locks it; translates its errors.

Layout on disk (format version 2; version 1, which can still be read, had no standing, and kept
topics, groups and settings only here):

    application_id   0x454D514D, "EMQM"
    user_version     the format version
    topics, groups, settings
                     name TEXT PRIMARY KEY, document TEXT (JSON), checksum INTEGER
    standing         one row: log offset up to which the file follows the log, checksum INTEGER
    offsets          consumer_group, topic, queue_id PRIMARY KEY, queue_offset, checksum INTEGER

``checksum`` is the CRC-32 of the row's other columns, as UTF-8 text with a zero byte between two:
SQLite checks the structure of its pages, not their contents.

The journal is a rollback journal, not a WAL: SQLite silently drops a damaged WAL frame and every
commit after it, although those commits were durable. The journal is truncated, not deleted:
``synchronous=FULL`` does not flush a deletion, and a power cut could undo the commit. A write takes
about 1 ms instead of 0.5. The file is locked as long as it is open, so that no other reader can
make the broker wait.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import cast

from escrowmq.model.errors import EscrowError, StoreCorrupt, StoreUnusable, Unavailable

APPLICATION_ID = 0x454D514D
FORMAT_VERSION = 2
VERSION_MAX = 255
"""No release will have a higher version; a header with a higher one is damaged."""
COPIED_PAGES = 64
"""Pages of 4 KiB that a copy takes at a time: less than 1 ms of work."""

_DOCUMENT_TABLE = """CREATE TABLE {} (
    name TEXT PRIMARY KEY, document TEXT NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID"""
_SCHEMA = (
    *(_DOCUMENT_TABLE.format(table) for table in ("topics", "groups", "settings")),
    """CREATE TABLE offsets (
        consumer_group TEXT, topic TEXT, queue_id INTEGER, queue_offset INTEGER NOT NULL,
        checksum INTEGER NOT NULL, PRIMARY KEY (consumer_group, topic, queue_id)
    ) WITHOUT ROWID""",
)

#: Offset of the write version in SQLite's header: 1 is a rollback journal, 2 is a WAL.
_WRITE_VERSION_AT = 18
_WRITE_VERSION_MAX = 2

#: What version 2 added.
_STANDING = "CREATE TABLE standing (log_offset INTEGER NOT NULL, checksum INTEGER NOT NULL)"
#: The tables of each version that can be read.
_TABLES: Mapping[object, set[str]] = {1: {*_SCHEMA}, 2: {*_SCHEMA, _STANDING}}

_DAMAGED = (StoreCorrupt, "meta_damaged", "restore the file from a backup")
_ERRORS: Mapping[int, tuple[type[EscrowError], str, str]] = {
    sqlite3.SQLITE_FULL: (Unavailable, "meta_full", "nothing was written; make room"),
    sqlite3.SQLITE_READONLY: (StoreUnusable, "meta_read_only", "make file and directory writable"),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnusable,
        "meta_cannot_open",
        "the directory is missing or not writable, or the path is not a file",
    ),
    sqlite3.SQLITE_BUSY: (StoreUnusable, "meta_locked", "another process has it open"),
    sqlite3.SQLITE_IOERR: (StoreUnusable, "meta_io_failed", "the disk failed; look at its log"),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "meta_damaged", "this is not an SQLite file"),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    # All statements are constant, so a missing table or column is the only general error.
    sqlite3.SQLITE_ERROR: _DAMAGED,
}


class MetaFile:
    """One open file. It raises EscrowMQ's errors; SQLite's own errors mean a bug in our code."""

    def __init__(self, path: str, pages_max: int) -> None:
        self.path = path
        # Before SQLite opens it: closing a file drops all locks that this process has on it.
        _refuse_write_version(path)
        with self._errors():
            # Other threads write and copy the file; SQLite serializes them.
            self._connection = sqlite3.connect(
                path, isolation_level=None, timeout=1.0, check_same_thread=False
            )
        # Do not raise for invalid UTF-8: the row's checksum finds it, like all other damage.
        self._connection.text_factory = lambda data: data.decode(errors="replace")
        self._copying = Lock()
        self._is_closing = False
        try:
            with self._errors():
                version = self._identify()
                self._check()
                self._prepare(pages_max, version)
        except BaseException:
            self._connection.close()
            raise

    def rows(self, table: str, columns: Iterable[str]) -> Iterator[tuple[object, ...] | None]:
        """Yield all rows without their checksum, and None for a row whose checksum is wrong."""
        with self._errors():
            # Table and columns are constants of the caller, never a user's input.
            query = f"SELECT {', '.join(columns)}, checksum FROM {table}"  # noqa: S608
            for *row, checksum in self._connection.execute(query):
                yield tuple(row) if checksum == row_checksum(row) else None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction: durable when it ends, or undone as a whole."""
        with self._errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    def copy_to(self, path: str) -> None:
        """Write everything committed into a new file, which is durable on return.

        May run in another thread: other users of the file wait for ``COPIED_PAGES`` at most, and
        never for the disk of the copy.
        """
        with self._copying, self._errors():
            with closing(sqlite3.connect(path)) as target:
                target.execute("PRAGMA synchronous = OFF")
                self._connection.backup(
                    target, pages=COPIED_PAGES, progress=self._refuse_if_closing, sleep=0.01
                )
            with Path(path).open("rb+") as copy:
                os.fsync(copy.fileno())

    def _refuse_if_closing(self, _status: int, _left: int, _total: int) -> None:
        if self._is_closing:
            raise Unavailable("writer_closed", "the broker is stopping")

    def close(self) -> None:
        """Close the file; a copy in progress is aborted."""
        self._is_closing = True
        with self._copying:
            self._connection.close()

    def _identify(self) -> int:
        """Return the format version, 0 for a new file. Writes nothing: the file may be foreign."""
        application_id = self._ask("PRAGMA application_id")
        version = self._ask("PRAGMA user_version")
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
        tables = {sql for (sql,) in self._connection.execute(query)}
        if (application_id, version) == (0, 0) and not tables:
            return 0
        # Each version has its own set of tables. They identify the file even if its header is
        # damaged.
        if tables in _TABLES.values():
            if application_id != APPLICATION_ID or tables != _TABLES.get(version):
                raise StoreCorrupt("meta_damaged", "its header does not match", path=self.path)
        elif application_id != APPLICATION_ID:
            raise StoreUnusable(
                "meta_foreign",
                "this SQLite file belongs to another application",
                path=self.path,
                application_id=application_id,
            )
        elif not 0 <= cast("int", version) <= VERSION_MAX:
            raise StoreCorrupt("meta_damaged", "no release has this version", path=self.path)
        elif version not in _TABLES:
            raise StoreUnusable(
                "meta_version_unknown",
                "use the release that wrote it, or a later one",
                path=self.path,
                version=version,
                version_known=FORMAT_VERSION,
            )
        assert isinstance(version, int)
        return version

    def _check(self) -> None:
        finding = self._ask("PRAGMA quick_check(1)")
        if finding != "ok":
            raise StoreCorrupt("meta_damaged", str(finding), path=self.path)

    def _prepare(self, pages_max: int, version: int) -> None:
        self._ask("PRAGMA locking_mode = EXCLUSIVE")
        self._ask("PRAGMA journal_mode = TRUNCATE")
        self._ask(f"PRAGMA max_page_count = {pages_max}")
        self._connection.execute("PRAGMA synchronous = FULL")
        # Write at every start, even if nothing changes: an unwritable directory fails now, and not
        # when the first user makes a topic.
        with self._connection:
            self._connection.execute("BEGIN EXCLUSIVE")
            for statement in () if version else _SCHEMA:
                self._connection.execute(statement)
            if version < FORMAT_VERSION:
                self._connection.execute(_STANDING)
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _ask(self, question: str) -> object:
        answer: object = self._connection.execute(question).fetchone()[0]
        return answer

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # A wrong thread or a closed database: our bug, not the file's state.
        except sqlite3.DatabaseError as error:
            # Python, not SQLite, detects text that is not UTF-8. That error has no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            kind, name, message = _ERRORS.get(code, (StoreUnusable, "meta_failed", ""))
            raise kind(name, message, path=self.path, cause=str(error)) from error
        except UnicodeDecodeError as error:
            # SQLite's message quotes the file, and Python cannot decode it.
            kind, name, message = _DAMAGED
            raise kind(name, message, path=self.path, cause=str(error)) from error


def _refuse_write_version(path: str) -> None:
    """Raise if the write version is damaged; SQLite would only call the file read-only."""
    try:
        with Path(path).open("rb") as file:
            header = file.read(_WRITE_VERSION_AT + 1)
    except OSError:
        return  # SQLite reports that, too.
    if len(header) > _WRITE_VERSION_AT and header[_WRITE_VERSION_AT] > _WRITE_VERSION_MAX:
        raise StoreCorrupt("meta_damaged", "its header does not match", path=path)


def row_checksum(row: Iterable[object]) -> int:
    """Return the checksum of a row, given all its other columns."""
    return zlib.crc32("\0".join(map(str, row)).encode())
