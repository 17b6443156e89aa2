"""Changes that are written to ``meta.db`` in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from escrowmq.store.meta.sqlite_file import row_checksum

if TYPE_CHECKING:
    from escrowmq.store.meta.sqlite_file import MetaFile

OffsetKey = tuple[str, str, int]
"""Consumer group, topic, queue id."""

CatalogTable: TypeAlias = Literal["topics", "groups", "settings"]
"""A table of ``meta.db`` with documents of the catalog."""


@dataclass(slots=True)
class Changes:
    """Changes of one transaction: deletions first, then insertions."""

    #: Topics and groups whose offsets are deleted.
    forgotten_topics: list[str] = field(default_factory=list)
    forgotten_groups: list[str] = field(default_factory=list)
    #: By table: names and their documents, None to delete one.
    documents: dict[CatalogTable, dict[str, bytes | None]] = field(default_factory=dict)
    offsets: dict[OffsetKey, int] = field(default_factory=dict)
    #: Whether to delete everything in the file first.
    is_anew: bool = False
    #: The log offset up to which the file then follows the log; below 0 to leave it unchanged.
    standing: int = -1

    @property
    def count(self) -> int:
        """Number of changes."""
        documents = sum(map(len, self.documents.values()))
        forgotten = len(self.forgotten_topics) + len(self.forgotten_groups)
        return len(self.offsets) + documents + forgotten + self.is_anew


def write_changes(file: MetaFile, changes: Changes) -> None:
    """Make the changes durable, all or none."""
    # The table names in the statements are constants of the caller, never a user's input.
    with file.transaction() as connection:
        if changes.is_anew:
            for table in ("offsets", "standing", *changes.documents):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608
        for topic in changes.forgotten_topics:
            connection.execute("DELETE FROM offsets WHERE topic = ?", (topic,))
        for group in changes.forgotten_groups:
            connection.execute("DELETE FROM offsets WHERE consumer_group = ?", (group,))
        for table, documents in changes.documents.items():
            gone = [(name,) for name, document in documents.items() if document is None]
            rows = [
                (name, document.decode())
                for name, document in documents.items()
                if document is not None
            ]
            connection.executemany(f"DELETE FROM {table} WHERE name = ?", gone)  # noqa: S608
            connection.executemany(
                f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",  # noqa: S608
                [(*row, row_checksum(row)) for row in rows],
            )
        connection.executemany(
            "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?)",
            (
                (*key, offset, row_checksum((*key, offset)))
                for key, offset in changes.offsets.items()
            ),
        )
        if changes.standing >= 0:
            connection.execute("DELETE FROM standing")
            row = (changes.standing, row_checksum((changes.standing,)))
            connection.execute("INSERT INTO standing VALUES (?, ?)", row)
